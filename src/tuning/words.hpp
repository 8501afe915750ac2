// The words of enumerators in tables and reports, as the command line has them.
#pragma once

#include "table.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

namespace flashomp::tuning {

template <class Value>
constexpr std::array<std::pair<Value, std::string_view>, 0> words{};

template <>
inline constexpr std::array<std::pair<Backend, std::string_view>, 2> words<Backend>{
    {{Backend::openmp, "openmp"}, {Backend::cuda, "cuda"}}};

template <>
inline constexpr std::array<std::pair<Machine, std::string_view>, 5> words<Machine>{{{Machine::automatic, "auto"},
                                                                                     {Machine::host, "host"},
                                                                                     {Machine::plain, "plain"},
                                                                                     {Machine::tensor, "tensor"},
                                                                                     {Machine::hopper, "hopper"}}};

template <>
inline constexpr std::array<std::pair<Mask, std::string_view>, 3> words<Mask>{
    {{Mask::none, "none"}, {Mask::causal, "causal"}, {Mask::window, "window"}}};

template <>
inline constexpr std::array<std::pair<DType, std::string_view>, 3> words<DType>{
    {{DType::float32, "float32"}, {DType::bfloat16, "bfloat16"}, {DType::float16, "float16"}}};

template <>
inline constexpr std::array<std::pair<bool, std::string_view>, 2> words<bool>{
    {{false, "forward"}, {true, "backward"}}}; // ShapeClass::is_backward

/// Empty for an enumerator that has none.
template <class Value>
constexpr std::string_view word_of(Value value)
{
    const auto found =
        std::find_if(words<Value>.begin(), words<Value>.end(), [&](const auto& pair) { return pair.first == value; });
    return found == words<Value>.end() ? std::string_view() : found->second;
}

template <class Value>
constexpr std::optional<Value> value_of(std::string_view word)
{
    const auto found =
        std::find_if(words<Value>.begin(), words<Value>.end(), [&](const auto& pair) { return pair.second == word; });
    return found == words<Value>.end() ? std::nullopt : std::optional<Value>(found->first);
}

} // namespace flashomp::tuning
