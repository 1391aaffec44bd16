// Functions that take keyword arguments only, each stored in a field of a struct. pybind11's own
// keyword arguments take 8 us for the 30 fields of a call, these take 1 us; and they have a
// signature that `inspect` can read, and types from which tests/make_stub.py writes _native.pyi.
// A function whose callers write its keywords out should have at most 15: from 16 on Python packs
// them into a dictionary, which costs more than everything else.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

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
    int64_t n[6];
    read(value, n);
    sizes = {n[0], n[1], n[2], n[3], n[4], n[5], sizes.support_shared};
}

inline void read(PyObject* value, PosteriorSizes& sizes) {
    int64_t n[7];
    read(value, n);
    sizes = {n[0], n[1], n[2], n[3], n[4], n[5], n[6]};
}

// The bytes of the smallest numbers of a struct, by those of its types that it has.
inline size_t size_of(DType type) {
    return type == DType::kFloat64 ? 8 : type == DType::kFloat32 ? 4 : 2;
}
template <typename Struct>
auto smallest_number(const Struct& of, int) -> decltype(size_of(of.dtype) + size_of(of.rows)) {
    return std::min(size_of(of.dtype), size_of(of.rows));
}
template <typename Struct>
auto smallest_number(const Struct& of, int) -> decltype(size_of(of.dtype) + size_of(of.written)) {
    return std::min(size_of(of.dtype), size_of(of.written));
}
template <typename Struct>
auto smallest_number(const Struct& of, long) -> decltype(size_of(of.dtype)) {
    return size_of(of.dtype);
}
template <typename Struct>
size_t smallest_number(const Struct&, ...) {
    return 1;
}

// The address of an array must be a multiple of the size of its numbers, if that is known.
template <typename Item, typename Struct>
void check_address(const Item* array, const Struct& of) {
    size_t bytes = 1;
    if constexpr (std::is_void_v<Item>) {
        bytes = smallest_number(of, 0);
    } else {
        bytes = alignof(Item);
    }
    if (reinterpret_cast<uintptr_t>(array) % bytes != 0) {
        throw py::value_error("must be at a multiple of " + std::to_string(bytes) + " bytes");
    }
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

    // Keywords named like their fields, which `names` lists as "&Params::first, &Params::second".
    template <auto... Fields>
    void add(std::string_view names) {
        (add_as<Fields>(take_name(names)), ...);
    }

    // A keyword of another name; pointers to members lead to its field.
    template <auto... Path>
    Keywords& add_as(const std::string& name) {
        PyObject* const interned = PyUnicode_InternFromString(name.c_str());
        if (interned == nullptr) throw py::error_already_set();
        using Field = std::remove_reference_t<decltype(member<Path...>(std::declval<Struct&>()))>;
        const auto set = [](PyObject* value, Struct& to) {
            Field& field = member<Path...>(to);
            read(value, field);
            if constexpr (std::is_pointer_v<Field>) check_address(field, to);
        };
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

    static std::string take_name(std::string_view& names) {
        const std::string_view first = names.substr(0, names.find(','));
        names.remove_prefix(std::min(first.size() + 1, names.size()));
        return std::string(first.substr(first.rfind(':') + 1));
    }

    size_t find(PyObject* name) const {
        size_t at = 0;
        while (at < list_.size() && PyUnicode_Compare(list_[at].interned, name) != 0) ++at;
        return at;
    }

    std::string function_;
    std::vector<Keyword> list_;
};

#define PADDLE_EXT_FIELDS(keywords, ...) keywords.template add<__VA_ARGS__>(#__VA_ARGS__)

}  // namespace paddle_ext
