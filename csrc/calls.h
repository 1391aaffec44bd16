// A call as Python sees it: an object built from keyword arguments only, with methods that take
// further keywords, each stored in a field of a struct (common/calls.inl). It runs the functions that
// take the struct, on the CPU or on CUDA.
//
// pybind11's own keyword arguments take 8 us for the 30 fields of a call, these take 1 us; and they
// have a signature that `inspect` can read, and types from which tools/make_stub.py writes
// _native.pyi. A function whose callers write its keywords out should have at most 15: from 16 on
// Python packs them into a dictionary, which costs more than everything else.
#pragma once

#include <pybind11/pybind11.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif
#if !defined(_WIN32)
#include <pthread.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cctype>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "cpu/levels.h"

namespace paddle_ext {

namespace py = pybind11;

// --- from Python to a field ---------------------------------------------------------------------

inline void raise_if_failed() {
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
}

template <typename Field>
void read(PyObject* value, Field& field) {
    if constexpr (std::is_same_v<Field, Target>) {
        if (!py::isinstance<Target>(value)) throw py::type_error("must be a Target");
        field = py::handle(value).cast<const Target&>();
    } else if constexpr (std::is_same_v<Field, bool>) {
        if (!PyBool_Check(value)) throw py::type_error("must be True or False");
        field = value == Py_True;
    } else if constexpr (std::is_floating_point_v<Field>) {
        field = PyFloat_AsDouble(value);
        if (field == -1) raise_if_failed();
    } else if constexpr (std::is_pointer_v<Field>) {
        field = static_cast<Field>(PyLong_AsVoidPtr(value));
        if (field == nullptr) raise_if_failed();
    } else if constexpr (std::is_unsigned_v<Field>) {
        field = PyLong_AsUnsignedLongLong(value);
        if (field == Field(-1)) raise_if_failed();
    } else {  // a signed integer, or an enumeration
        const long long number = PyLong_AsLongLong(value);
        if (number == -1) raise_if_failed();
        field = static_cast<Field>(number);
        if (static_cast<long long>(field) != number) throw py::value_error("is too large");
    }
}

template <typename Item, size_t Count>
void read(PyObject* value, Item (&items)[Count]) {
    const auto sequence = py::reinterpret_steal<py::object>(PySequence_Fast(value, "no sequence"));
    if (!sequence) throw py::error_already_set();
    if (PySequence_Fast_GET_SIZE(sequence.ptr()) != Py_ssize_t(Count)) {
        throw py::value_error("must have " + std::to_string(Count) + " numbers");
    }
    for (size_t i = 0; i < Count; ++i) {
        read(PySequence_Fast_GET_ITEM(sequence.ptr(), Py_ssize_t(i)), items[i]);
    }
}

// The sizes of a task, as one tuple.
inline void read(PyObject* value, TaskSizes& sizes) {
    int64_t n[7];
    read(value, n);
    sizes = {n[0], n[1], n[2], n[3], n[4], n[5], n[6] != 0};
}

inline void read(PyObject* value, PosteriorSizes& sizes) {
    int64_t n[7];
    read(value, n);
    sizes = {n[0], n[1], n[2], n[3], n[4], n[5], n[6]};
}

// The type of a field in Python.
template <typename Field>
std::string type_of() {
    if constexpr (std::is_same_v<Field, Target>) {
        return "Target";
    } else if constexpr (std::is_same_v<Field, TaskSizes> ||
                         std::is_same_v<Field, PosteriorSizes>) {
        return "tuple[int, int, int, int, int, int, int]";
    } else if constexpr (std::is_array_v<Field>) {
        return "Sequence[" + type_of<std::remove_extent_t<Field>>() + "]";
    } else {
        return std::is_same_v<Field, bool>       ? "bool"
               : std::is_floating_point_v<Field> ? "float"
                                                 : "int";
    }
}

// --- keywords -----------------------------------------------------------------------------------

template <typename Struct>
class Keywords {
  public:
    explicit Keywords(std::string function) : function_(std::move(function)) {}

    // Keywords with the given names, separated by commas.
    template <auto... Fields>
    void add(std::string_view names) {
        (add_one<Fields>(take_name(names)), ...);
    }

    // All keywords are required and no others are allowed; fastest in the order of `add`.
    void read_all(PyObject* const* values, Py_ssize_t positional, PyObject* names,
                  Struct& to) const {
        if (positional != 0) throw py::type_error(function_ + "() takes keyword arguments only");
        const size_t given = names == nullptr ? 0 : size_t(PyTuple_GET_SIZE(names));
        for (size_t i = 0; i < given; ++i) {
            PyObject* const name = PyTuple_GET_ITEM(names, Py_ssize_t(i));
            const size_t at = i < list_.size() && list_[i].interned == name ? i : find(name);
            if (at == list_.size()) {
                const std::string text = py::str(py::handle(name));
                throw py::type_error(function_ + "() got an unexpected argument '" + text + "'");
            }
            list_[at].set(values[i], to);
        }
        // Python rejects duplicate names, so if the count is right none is missing.
        if (given != list_.size()) {
            throw py::type_error(function_ + "() takes " + std::to_string(list_.size()) +
                                 " arguments, got " + std::to_string(given));
        }
    }

    // A docstring: the signature as `inspect` reads it, without types, then with them.
    std::string signature(bool method, const std::string& result) const {
        std::string plain = method ? "$self" : "", typed = method ? "self" : "";
        for (std::string* const all : {&plain, &typed}) {
            if (!list_.empty()) *all += method ? ", *" : "*";
        }
        for (const auto& keyword : list_) {
            plain += ", " + keyword.name;
            typed += ", " + keyword.name + ": " + keyword.type;
        }
        return function_ + "(" + plain + ")\n--\n\n" + function_ + "(" + typed + ") -> " + result;
    }

    const char* function() const { return function_.c_str(); }

  private:
    struct Keyword {
        std::string name;
        PyObject* interned;
        std::string type;
        void (*set)(PyObject*, Struct&);
    };

    template <auto Field>
    void add_one(const std::string& name) {
        PyObject* const interned = PyUnicode_InternFromString(name.c_str());
        if (interned == nullptr) throw py::error_already_set();
        using Type = std::remove_reference_t<decltype(std::declval<Struct&>().*Field)>;
        const auto set = [](PyObject* value, Struct& to) { read(value, to.*Field); };
        list_.push_back({name, interned, type_of<Type>(), set});
    }

    static std::string take_name(std::string_view& names) {
        const std::string_view first = names.substr(0, names.find(','));
        names.remove_prefix(std::min(first.size() + 1, names.size()));
        return std::string(first.substr(first.find_first_not_of(' ')));
    }

    size_t find(PyObject* name) const {
        size_t at = 0;
        while (at < list_.size() && PyUnicode_Compare(list_[at].interned, name) != 0) ++at;
        return at;
    }

    std::string function_;
    std::vector<Keyword> list_;
};

// --- calls ----------------------------------------------------------------------------------------

template <typename Params>
struct Call : Params {
    Target target;
};

template <typename Params, typename = void>
constexpr bool kHasMemory = false;
template <typename Params>
constexpr bool kHasMemory<Params, std::void_t<decltype(&Params::workspace)>> = true;

inline void require_code(bool cuda, bool on_cpu, bool on_cuda) {
    require(cuda || on_cpu, "this function runs on CUDA only");
    require(!cuda || PADDLE_EXT_WITH_CUDA,
            "this build of paddle_ext has no CUDA; rebuild it with PADDLE_EXT_CUDA=ON");
    require(!cuda || on_cuda, "this function runs on the CPU only");
}

// So that 0 means that a call takes no memory.
inline int64_t at_least_one(int64_t bytes) { return bytes == 0 ? 1 : bytes; }

template <typename Params>
int64_t workspace_of(const Call<Params>& call) {
    const Target& at = call.target;
    const Params& params = call;
    require_code(at.cuda, Params::kCpu, Params::kCuda);
    if constexpr (kHasMemory<Params> && Params::kCuda && PADDLE_EXT_WITH_CUDA) {
        if (at.cuda) {
            const DeviceGuard guard(at.device);
            return at_least_one(workspace_cuda(params));
        }
    }
    if constexpr (kHasMemory<Params> && Params::kCpu) {
        return at_least_one(workspace_cpu(params, at.threads));
    }
    return 0;
}

template <typename Params>
void run_call(const Call<Params>& call) {
    const Target& at = call.target;
    const Params& params = call;
    require_code(at.cuda, Params::kCpu, Params::kCuda);
    if constexpr (Params::kCuda && PADDLE_EXT_WITH_CUDA) {
        if (at.cuda) {
            const DeviceGuard guard(at.device);
            return run_cuda(params, at.stream);
        }
    }
    if constexpr (Params::kCpu) run_cpu(params, at.threads);
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
#elif defined(_WIN32)
        return true;  // unknown: others ask too, and find no signals
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

// The keywords of the functions of a call, NAME_call and `run`. The target comes first and the
// workspace last.
template <typename P>
struct CallKeywords {
    using Params = P;
    Keywords<Call<Params>> make, workspace{"workspace"}, run{"run"};

    explicit CallKeywords(const std::string& name) : make(name + "_call") {
        make.template add<&Call<Params>::target>("target");
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

// Adds NAME_call and the class NameCall to the module; describe(keywords), which is assigned, adds
// the keywords.
template <typename Params>
struct AddedCall {
    py::module_& module;
    std::string name;

    template <typename Describe>
    void operator=(const Describe& describe) {
        CallKeywords<Params> all(name);
        describe(all);
        name[0] = char(std::toupper(name[0]));
        CallClass<Params>::add_to(module, name + "Call", all);
    }
};

}  // namespace paddle_ext
