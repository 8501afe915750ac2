// The results of one attention call: allocated before it, written after it, all or none.
#pragma once

#include "attention_inputs.hpp"
#include "attention_options.hpp"

#include "flashomp/tensor.hpp"

#include "host_tensor.hpp"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace flashomp::cli {

/// Owns the result tensors. They start as NaN, so that an element nobody computed shows.
class AttentionOutputs {
public:
    explicit AttentionOutputs(Layout layout) : layout_(layout) {}

    /// The output that belongs to queries q and values v, and the log-sum-exp that belongs to q: float32 [B, Hq, Nq],
    /// or [Hq, total_q] when packed. What does not fit together is refused later, by the library.
    TensorView add_o(const ConstTensorView& q, const ConstTensorView& v);
    TensorView add_lse(const ConstTensorView& q);

    /// The gradient of q, k or v: the same shape and dtype, stored in the layout of the files, viewed as bshd.
    TensorView add_like(const std::string& name, const ConstTensorView& like);

    /// The gradient of a bias or sink: the same shape and dtype.
    TensorView add_plain(const std::string& name, const ConstTensorView& like);

    [[nodiscard]] const std::vector<std::pair<std::string, io::HostTensor>>& tensors() const { return tensors_; }

private:
    TensorView add(const std::string& name, DType dtype, io::Shape shape);

    Layout layout_;
    std::vector<std::pair<std::string, io::HostTensor>> tensors_;
};

/// A tensor that was written and where.
struct Written {
    std::string name;
    std::string description; ///< dtype and shape as in the file
    std::filesystem::path path;
};

/// The place named by --out: a folder, or one .safetensors file.
class OutputPlace {
public:
    /// Throws Error, before anything is computed, when `out` cannot take the named tensors or one of them would
    /// overwrite an input.
    OutputPlace(std::filesystem::path out, const std::vector<std::string>& names,
                const std::vector<std::filesystem::path>& inputs);

    /// Writes every tensor or, throwing Error, none. A missing folder is made, and removed again on failure.
    [[nodiscard]] std::vector<Written> write(const AttentionOutputs& outputs, Layout layout) const;

private:
    [[nodiscard]] std::filesystem::path file_of(const std::string& name) const;

    std::filesystem::path out_;
    bool one_file_;
};

} // namespace flashomp::cli
