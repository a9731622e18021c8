"""What a page that stands alone must look like."""

from html.parser import HTMLParser


class Balanced(HTMLParser):
    """Checks that tags close in order and that nothing runs; collects what could load something.

    void : the tags of this page that are never closed.
    """

    def __init__(self, text, void=("img", "br")):
        super().__init__()
        self.open, self.links, self._void = [], [], void
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "link", "iframe", "object")
        assert not any(name.startswith("on") for name, _ in attrs)
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in self._void:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self._void:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
