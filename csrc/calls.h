// A call as Python sees it: an object made from keyword arguments, with methods that take further
// ones, each stored in a field of a struct (common/calls.inl). It runs the functions that take the
// struct, on the CPU or on CUDA.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif
#if !defined(_WIN32)
#include <pthread.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "cpu/levels.h"

namespace paddle_ext {

namespace py = pybind11;

// --- from Python to a field ---------------------------------------------------------------------

// Addresses and the numbers of enumerations are integers in Python. Throws py::cast_error for what is
// not of the type of the field.
template <typename Field>
void read(const py::handle& value, Field& field) {
    if constexpr (std::is_pointer_v<Field>) {
        field = reinterpret_cast<Field>(value.cast<uintptr_t>());
    } else if constexpr (std::is_enum_v<Field>) {
        field = Field(value.cast<int>());
    } else {
        field = value.cast<Field>();
    }
}

template <typename Item, size_t Count>
void read(const py::handle& value, Item (&items)[Count]) {
    const auto values = value.cast<std::array<py::object, Count>>();
    for (size_t i = 0; i < Count; ++i) read(values[i], items[i]);
}

// The sizes of a task, as one tuple.
inline void read(const py::handle& value, TaskSizes& sizes) {
    int64_t n[7];
    read(value, n);
    sizes = {n[0], n[1], n[2], n[3], n[4], n[5], n[6] != 0};
}

inline void read(const py::handle& value, ProductsSizes& sizes) {
    int64_t n[7];
    read(value, n);
    sizes = {n[0], n[1], n[2], n[3], n[4], n[5], n[6]};
}

// The type of a field in Python.
template <typename Field>
std::string type_of() {
    if constexpr (std::is_same_v<Field, Target>) {
        return "Target";
    } else if constexpr (std::is_same_v<Field, TaskSizes> || std::is_same_v<Field, ProductsSizes>) {
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
//
// Three ways to meet the parameters of a call, which are listed in common/calls.inl: to read them
// from keyword arguments, to write down their types, and not at all.

// All parameters are required, and no others are allowed.
class ReadKeywords {
  public:
    ReadKeywords(std::string function, const py::kwargs& given)
        : function_(std::move(function)), given_(given) {}

    template <typename Field>
    void operator()(const char* name, Field& field) {
        const py::str key(name);
        if (!given_.contains(key)) {
            throw py::type_error(function_ + "() needs the argument '" + name + "'");
        }
        known_.push_back(name);
        const py::object value = given_[key];
        try {
            read(value, field);
        } catch (const py::cast_error&) {
            const std::string got = py::repr(value);
            throw py::type_error(function_ + "(): " + name + " must be " + type_of<Field>() +
                                 ", got " + got);
        }
    }

    // Call it when all parameters are read.
    void refuse_others() const {
        if (given_.size() == known_.size()) return;
        for (const auto& item : given_) {
            const std::string name = py::str(item.first);
            if (std::find(known_.begin(), known_.end(), name) == known_.end()) {
                throw py::type_error(function_ + "() got an unexpected argument '" + name + "'");
            }
        }
    }

  private:
    const std::string function_;
    const py::kwargs& given_;
    std::vector<std::string_view> known_;
};

// Writes down a signature: documentation, from which tools/make_stub.py writes _native.pyi.
class WriteSignature {
  public:
    explicit WriteSignature(std::string begin) : text_(std::move(begin)) {}

    template <typename Field>
    void operator()(const char* name, const Field&) {
        text_ += std::string(", ") + name + ": " + type_of<Field>();
    }

    std::string returning(const std::string& result) const { return text_ + ") -> " + result; }

  private:
    std::string text_;
};

struct Skip {
    template <typename Field>
    void operator()(const char*, const Field&) const {}
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

// Adds NAME_call to the module, which returns an object of the class NameCall. Its method `workspace`
// returns the bytes that `run` needs; `run` releases the GIL. parameters(params, make, run), which is
// assigned, passes the name and the field of each parameter to `make` or to `run`.
template <typename Params>
struct AddedCall {
    py::module_& module;
    std::string name;

    template <typename Parameters>
    void operator=(const Parameters& parameters) {
        std::string class_name = name + "Call";
        class_name[0] = char(std::toupper(class_name[0]));
        const std::string maker = name + "_call";

        Params none{};
        Skip skip;
        WriteSignature of_maker(maker + "(*, target: Target"), of_run("run(self, *");
        parameters(none, of_maker, skip);
        parameters(none, skip, of_run);

        const auto make = [maker, parameters](const py::kwargs& given) {
            Call<Params> call{};
            Skip skip;
            ReadKeywords keywords(maker, given);
            keywords("target", call.target);
            parameters(call, keywords, skip);
            keywords.refuse_others();
            return call;
        };
        const auto run = [parameters](Call<Params> call, const py::kwargs& given) {
            Skip skip;
            ReadKeywords keywords("run", given);
            parameters(call, skip, keywords);
            keywords.refuse_others();
            {
                const WithoutGil released;
                run_call(call);
            }
            if (PyErr_Occurred() != nullptr) throw py::error_already_set();  // by a signal handler
        };
        py::class_<Call<Params>>(module, class_name.c_str(), py::is_final())
            .def("workspace", &workspace_of<Params>, "workspace(self) -> int")
            .def("run", run, of_run.returning("None").c_str());
        module.def(maker.c_str(), make, of_maker.returning(class_name).c_str());
    }
};

}  // namespace paddle_ext
