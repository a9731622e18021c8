// How native work gives up the GIL, notices signals, and ends with the interpreter.
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "bindings_common.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace crfield {

namespace {

// The thread in which Python runs signal handlers.
std::atomic<unsigned long> main_thread{0};
// What a signal handler raised, until it goes on to Python: only the main thread uses it.
std::unique_ptr<nb::python_error> raised;

// A daemon thread that asks for the GIL after the interpreter has ended is ended there by pthread_exit
// (before Python 3.14), which unwinds the stack; through functions of C++ that ends the whole process.
// It waits instead until the process is gone, as later Pythons make it do.
void take_gil(PyThreadState* state) {
  try {
    PyEval_RestoreThread(state);
  } catch (...) {
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  }
}

}  // namespace

Released::Released()
    : Watch(PyThread_get_thread_ident() == main_thread.load(std::memory_order_relaxed)),
      mode_(FloatMode::now()), state_(PyEval_SaveThread()) {}

Released::~Released() { take_gil(state_); }

bool Released::should_stop() {
  const FloatMode::Scope as_in_python(mode_);
  take_gil(state_);
  const bool has_raised = PyErr_CheckSignals() != 0;
  if (has_raised) raised = std::make_unique<nb::python_error>();
  state_ = PyEval_SaveThread();
  return has_raised;
}

void bind_signals(nb::module_&) {
  main_thread = nb::cast<unsigned long>(nb::module_::import_("threading").attr("main_thread")().attr("ident"));
#if defined(__unix__) || defined(__APPLE__)
  // The thread that forks is the main thread of the child.
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { main_thread = PyThread_get_thread_ident(); });
  (void)registered;
#endif
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const Interrupted&) {
      raised->restore();
      raised.reset();
    }
  });
}

}  // namespace crfield
