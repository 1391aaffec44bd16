// A solver call as Python sees it: an object built from keyword arguments only, each stored in the
// struct field of the same name, with methods that take further keywords. pybind11's own keyword
// arguments take 8 us for the 30 fields of a call, these take 1 us; and they have a signature that
// `inspect` can read, and types from which tests/make_stub.py writes _native.pyi. At most 15 per
// function: from 16 on Python packs them into a dictionary, which costs more than everything else.
#pragma once

#include <pthread.h>
#include <pybind11/pybind11.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif
#include <unistd.h>

#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/parallel.h"
#include "common/params.h"

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
inline void read(PyObject* value, PaddleSizes& sizes) {
    int64_t numbers[6];
    read(value, numbers);
    sizes.B = numbers[0], sizes.Q = numbers[1], sizes.S = numbers[2];
    sizes.K = numbers[3], sizes.D = numbers[4], sizes.N = numbers[5];
}

inline void read(PyObject* value, PosteriorSizes& sizes) {
    int64_t numbers[7];
    read(value, numbers);
    sizes = {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], numbers[6]};
}

// The type of a field in Python.
template <typename Field>
std::string type_of() {
    if constexpr (std::is_same_v<Field, Target>) {
        return "Target";
    } else if constexpr (std::is_same_v<Field, PaddleSizes>) {
        return "tuple[int, int, int, int, int, int]";
    } else if constexpr (std::is_same_v<Field, PosteriorSizes>) {
        return "tuple[int, int, int, int, int, int, int]";
    } else if constexpr (std::is_array_v<Field>) {
        return "Sequence[" + type_of<std::remove_extent_t<Field>>() + "]";
    } else {
        return std::is_same_v<Field, bool>       ? "bool"
               : std::is_floating_point_v<Field> ? "float"
                                                 : "int";
    }
}

template <auto First, auto... Rest, typename Struct>
auto& member(Struct& at) {
    if constexpr (sizeof...(Rest) == 0) {
        return at.*First;
    } else {
        return member<Rest...>(at.*First);
    }
}

// --- keywords -----------------------------------------------------------------------------------

template <typename Struct>
class Keywords {
  public:
    explicit Keywords(std::string function) : function_(std::move(function)) {}

    // Pointers to members that lead to the field.
    template <auto... Path>
    Keywords& add(const char* name) {
        PyObject* const interned = PyUnicode_InternFromString(name);
        if (interned == nullptr) throw py::error_already_set();
        const auto set = [](PyObject* value, Struct& to) { read(value, member<Path...>(to)); };
        using Field = std::remove_reference_t<decltype(member<Path...>(std::declval<Struct&>()))>;
        list_.push_back({name, interned, type_of<Field>(), set});
        return *this;
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
            plain += std::string(", ") + keyword.name;
            typed += std::string(", ") + keyword.name + ": " + keyword.type;
        }
        return function_ + "(" + plain + ")\n--\n\n" + function_ + "(" + typed + ") -> " + result;
    }

    const char* function() const { return function_.c_str(); }

  private:
    struct Keyword {
        const char* name;
        PyObject* interned;
        std::string type;
        void (*set)(PyObject*, Struct&);
    };

    size_t find(PyObject* name) const {
        size_t at = 0;
        while (at < list_.size() && PyUnicode_Compare(list_[at].interned, name) != 0) ++at;
        return at;
    }

    std::string function_;
    std::vector<Keyword> list_;
};

// --- calls --------------------------------------------------------------------------------------

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

// Each thread keeps one small workspace (Scratch in ops/operators.py). A call made by a signal
// handler inside another call must not share it, so it asks for more than the scratch has.
constexpr int64_t kBeyondScratch = int64_t(1) << 20;

// The keywords of the three functions of a call: NAME_call, workspace, and the one that runs it.
template <typename Struct>
struct CallKeywords {
    Keywords<Struct> make, workspace, run;

    CallKeywords(const std::string& name, const char* runs)
        : make(name + "_call"), workspace("workspace"), run(runs) {
        make.template add<&Struct::target>("target");
    }
};

// The module function `make` returns an object whose method `workspace` returns the bytes that
// `run` needs; `run` releases the GIL. There is one such class per struct, so everything is static.
template <typename Struct>
class CallClass {
  public:
    using Workspace = int64_t (*)(const Struct&);
    using Run = void (*)(const Struct&);

    static void add_to(py::module_& module, const char* name, const CallKeywords<Struct>& all,
                       Workspace workspace_of, Run run_of) {
        static const CallKeywords<Struct> keywords = all;
        keywords_ = &keywords;
        workspace_of_ = workspace_of;
        run_of_ = run_of;
        static PyMethodDef makers[] = {method(keywords.make, make_call, false, name), {}};
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
        module.attr(name) = py::handle(type);
        type_ = reinterpret_cast<PyTypeObject*>(type);
    }

  private:
    struct Object {
        PyObject_HEAD Struct call;
    };

    using Function = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);

    static PyMethodDef method(const Keywords<Struct>& keywords, Function function, bool method,
                              const char* result) {
        // Lives as long as the module.
        const auto* const doc = new std::string(keywords.signature(method, result));
        return {keywords.function(),
                reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function)),
                METH_FASTCALL | METH_KEYWORDS, doc->c_str()};
    }

    static PyObject* make_call(PyObject*, PyObject* const* values, Py_ssize_t positional,
                               PyObject* names) {
        return guarded([&] {
            Struct call{};
            keywords_->make.read_all(values, positional, names, call);
            PyObject* const self = type_->tp_alloc(type_, 0);
            if (self != nullptr) reinterpret_cast<Object*>(self)->call = call;
            return self;
        });
    }

    static PyObject* workspace(PyObject* self, PyObject* const* values, Py_ssize_t positional,
                               PyObject* names) {
        return guarded([&] {
            Struct call = reinterpret_cast<Object*>(self)->call;
            keywords_->workspace.read_all(values, positional, names, call);
            int64_t bytes = workspace_of_(call);
            if (inside_call() && bytes >= 0 && bytes < kBeyondScratch) bytes = kBeyondScratch;
            return PyLong_FromLongLong(bytes);
        });
    }

    static PyObject* run(PyObject* self, PyObject* const* values, Py_ssize_t positional,
                         PyObject* names) {
        return guarded([&]() -> PyObject* {
            Struct call = reinterpret_cast<Object*>(self)->call;
            keywords_->run.read_all(values, positional, names, call);
            {
                const WithoutGil released;
                run_of_(call);
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

    inline static const CallKeywords<Struct>* keywords_ = nullptr;
    inline static Workspace workspace_of_ = nullptr;
    inline static Run run_of_ = nullptr;
    inline static PyTypeObject* type_ = nullptr;
};

}  // namespace paddle_ext
