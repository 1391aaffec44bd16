// A call as Python sees it: an object built from keyword arguments only, with methods that take
// further keywords. It runs the functions that take its parameters (common/params.h), on the CPU or
// on CUDA.
#pragma once

#include <pthread.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif
#include <unistd.h>

#include <cctype>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "common/check.h"
#include "common/large.h"
#include "common/parallel.h"
#include "cpu/launch.h"
#include "keywords.h"

namespace paddle_ext {

template <typename Params>
struct Call : Params {
    Target target;
};

template <typename Params, typename... Others>
constexpr bool kIsOneOf = (std::is_same_v<Params, Others> || ...);
template <typename Params>
constexpr bool kOnCpu = !kIsOneOf<Params, SplitParams>;
template <typename Params>
constexpr bool kOnCuda = !kIsOneOf<Params, SumsParams, TaskParams>;
template <typename Params>
constexpr bool kNeedsMemory =
    !kIsOneOf<Params, DualParams, LateParams, MoveParams, SlopeParams, SplitParams>;

inline void require_code(bool cuda, bool on_cpu, bool on_cuda) {
    require(cuda || on_cpu, "this function runs on CUDA only");
    require(!cuda || PADDLE_EXT_WITH_CUDA,
            "this build of paddle_ext has no CUDA; rebuild it with PADDLE_EXT_CUDA=ON");
    require(!cuda || on_cuda, "this function runs on the CPU only");
}

template <typename Params>
int64_t workspace_of(const Call<Params>& call) {
    const Target& at = call.target;
    const Params& params = call;
    require_code(at.cuda, kOnCpu<Params>, kOnCuda<Params>);
    if constexpr (!kNeedsMemory<Params>) return 0;
    if constexpr (kNeedsMemory<Params> && kOnCuda<Params> && PADDLE_EXT_WITH_CUDA) {
        if (at.cuda) return workspace_cuda(params, at.device);
    }
    if constexpr (kNeedsMemory<Params>) return workspace_cpu(params, at.threads);
}

template <typename Params>
void run_call(const Call<Params>& call) {
    const Target& at = call.target;
    const Params& params = call;
    require_code(at.cuda, kOnCpu<Params>, kOnCuda<Params>);
    if constexpr (kOnCuda<Params> && PADDLE_EXT_WITH_CUDA) {
        if (at.cuda) return run_cuda(params, at.device, at.stream);
    }
    if constexpr (kOnCpu<Params>) run_cpu(params, at.threads);
}

// Turns C++ exceptions into Python ones.
template <typename Body>
PyObject* guarded(const Body& body) {
    try {
        return body();
    } catch (py::error_already_set& error) {
        error.restore();
    } catch (const py::builtin_exception& error) {
        error.set_error();
    } catch (const std::invalid_argument& error) {
        PyErr_SetString(PyExc_ValueError, error.what());
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

// Releases the GIL during its lifetime, but takes it about ten times a second to check for signals,
// whose handlers may raise an exception such as KeyboardInterrupt. The call is then cancelled.
// Handlers run on the main thread only, so other threads do not check: they would wait for the GIL
// in vain, and forever if the interpreter is shutting down.
class WithoutGil {
  public:
    WithoutGil() : state_(PyEval_SaveThread()), call_(handled, this) {}
    ~WithoutGil() { PyEval_RestoreThread(state_); }

  private:
    static bool on_main_thread() {
#if defined(__linux__)
        return syscall(SYS_gettid) == getpid();
#else
        return pthread_main_np() != 0;
#endif
    }

    static bool handled(void* self) {
        if (!on_main_thread()) return false;
        PyThreadState*& state = static_cast<WithoutGil*>(self)->state_;
        PyEval_RestoreThread(state);
        const bool raised = PyErr_CheckSignals() != 0;
        state = PyEval_SaveThread();
        return raised;
    }

    PyThreadState* state_;
    Interruptible call_;
};

// Each thread keeps one small workspace (Scratch in native/call.py). A call made by a signal
// handler inside another call must not share it, so it asks for more than the scratch has.
constexpr int64_t kBeyondScratch = int64_t(1) << 20;

// The keywords of the three functions of a call: NAME_call, workspace, and the one that runs it. The
// target comes first and the workspace last.
template <typename Params>
struct CallKeywords {
    Keywords<Call<Params>> make, workspace, run;

    CallKeywords(const std::string& name, const char* runs)
        : make(name + "_call"), workspace("workspace"), run(runs) {
        PADDLE_EXT_FIELDS(make, &Call<Params>::target);
    }
};

// The module function `make` returns an object whose method `workspace` returns the bytes that
// `run` needs; `run` releases the GIL. There is one such class per struct, so everything is static.
template <typename Params>
class CallClass {
  public:
    static void add_to(py::module_& module, const std::string& name,
                       const CallKeywords<Params>& all) {
        static const CallKeywords<Params> keywords = all;
        keywords_ = &keywords;
        static PyMethodDef makers[] = {method(keywords.make, make_call, false, name.c_str()), {}};
        static PyMethodDef methods[] = {method(keywords.workspace, workspace, true, "int"),
                                        method(keywords.run, run, true, "None"),
                                        {}};
        static PyType_Slot slots[] = {
            {Py_tp_methods, methods}, {Py_tp_dealloc, reinterpret_cast<void*>(destroy)}, {}};
        static const std::string full_name =
            py::str(module.attr("__name__")).cast<std::string>() + "." + name;
        static PyType_Spec spec = {full_name.c_str(), sizeof(Object), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
        PyObject* const type = PyType_FromSpec(&spec);
        if (type == nullptr || PyModule_AddFunctions(module.ptr(), makers) != 0) {
            throw py::error_already_set();
        }
        module.attr(name.c_str()) = py::handle(type);
        type_ = reinterpret_cast<PyTypeObject*>(type);
    }

  private:
    struct Object {
        PyObject_HEAD Call<Params> call;
    };

    using Function = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);

    static PyMethodDef method(const Keywords<Call<Params>>& keywords, Function function,
                              bool method, const char* result) {
        // Lives as long as the module.
        const auto* const doc = new std::string(keywords.signature(method, result));
        return {keywords.function(),
                reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function)),
                METH_FASTCALL | METH_KEYWORDS, doc->c_str()};
    }

    static PyObject* make_call(PyObject*, PyObject* const* values, Py_ssize_t positional,
                               PyObject* names) {
        return guarded([&] {
            Call<Params> call{};
            keywords_->make.read_all(values, positional, names, call);
            PyObject* const self = type_->tp_alloc(type_, 0);
            if (self != nullptr) reinterpret_cast<Object*>(self)->call = call;
            return self;
        });
    }

    static PyObject* workspace(PyObject* self, PyObject* const* values, Py_ssize_t positional,
                               PyObject* names) {
        return guarded([&] {
            Call<Params> call = reinterpret_cast<Object*>(self)->call;
            keywords_->workspace.read_all(values, positional, names, call);
            int64_t bytes = workspace_of(call);
            if (inside_call() && bytes >= 0 && bytes < kBeyondScratch) bytes = kBeyondScratch;
            return PyLong_FromLongLong(bytes);
        });
    }

    static PyObject* run(PyObject* self, PyObject* const* values, Py_ssize_t positional,
                         PyObject* names) {
        return guarded([&]() -> PyObject* {
            Call<Params> call = reinterpret_cast<Object*>(self)->call;
            keywords_->run.read_all(values, positional, names, call);
            {
                const WithoutGil released;
                run_call(call);
            }
            if (PyErr_Occurred() != nullptr) return nullptr;  // raised by a signal handler
            Py_RETURN_NONE;
        });
    }

    static void destroy(PyObject* self) {
        PyTypeObject* const type = Py_TYPE(self);
        type->tp_free(self);
        Py_DECREF(type);
    }

    inline static const CallKeywords<Params>* keywords_ = nullptr;
    inline static PyTypeObject* type_ = nullptr;
};

template <typename Params, typename = void>
constexpr bool kHasWorkspace = false;
template <typename Params>
constexpr bool kHasWorkspace<Params, std::void_t<decltype(&Params::workspace)>> = true;

// Adds NAME_call and the class NameCall to the module; `runs` is its method that runs a call, and
// describe(keywords) adds the keywords.
template <typename Params, typename Describe>
void add_call(py::module_& module, std::string name, const char* runs, const Describe& describe) {
    CallKeywords<Params> all(name, runs);
    describe(all);
    if constexpr (kHasWorkspace<Params>) {
        PADDLE_EXT_FIELDS(all.run, &Params::workspace, &Params::workspace_bytes);
    }
    name[0] = char(std::toupper(name[0]));
    CallClass<Params>::add_to(module, name + "Call", all);
}

// Adds the steps of large tasks to the module.
void add_large(py::module_& module);

}  // namespace paddle_ext
