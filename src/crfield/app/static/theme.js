// Runs before the page is drawn, hence no module: a remembered theme must not flash.
(() => {
  "use strict";
  const KEY = "crfield-theme";
  const root = document.documentElement;

  /** The remembered theme, or null where none is or storage is closed to the page. */
  function remembered() {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null;
    }
  }

  /** Whether the page is dark now, by choice or by the system's preference. */
  function isDark() {
    const chosen = root.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  function toggle() {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem(KEY, root.dataset.theme);
    } catch {
      // The choice holds until the page is closed.
    }
  }

  const theme = remembered();
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", toggle);
  });
})();
