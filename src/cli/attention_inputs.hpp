// The tensors of one attention call, read from files and turned into the library's views.
#pragma once

#include "attention_options.hpp"

#include "flashomp/options.hpp"
#include "flashomp/tensor.hpp"

#include "host_tensor.hpp"

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace flashomp::cli {

/// Where tensors come from.
struct InputFiles {
    std::map<std::string, std::filesystem::path> npy; ///< by tensor name
    std::filesystem::path safetensors;                ///< empty when not given
    Layout layout = Layout::bshd;
    std::optional<DType> dtype; ///< what q, k, v, do and o are converted to
    bool backward = false;      ///< do, o and lse are read too
};

/// The files that forward or backward was told to read.
[[nodiscard]] InputFiles input_files(const AttentionFlags& flags, bool backward);

/// Owns the tensors; the views point into them. Axes of the views are always bshd.
class AttentionInputs {
public:
    /// Reads and converts. Throws Error when a file is not as it should be, a tensor is named twice, or q, k, v or
    /// (backward) do is missing.
    explicit AttentionInputs(const InputFiles& files);

    /// The view of a tensor; "not given" when it was not.
    [[nodiscard]] ConstTensorView view(const std::string& name) const;

    /// `options` with the optional tensors filled in.
    [[nodiscard]] Options with_tensors(Options options) const;

    [[nodiscard]] Layout layout() const { return layout_; }

    /// What a user should know: conversions, tensors that were not used.
    [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }

    /// Every file that was read.
    [[nodiscard]] const std::vector<std::filesystem::path>& files() const { return files_; }

private:
    void read(const InputFiles& files);
    /// A view without axes would mean "not given" to the library, so such a tensor is refused here.
    void expect_axes(const std::string& name, const std::filesystem::path& path) const;
    void require(const std::vector<std::string>& names) const;
    /// q, k and v that are not float8_e4m3 yet.
    void quantize();
    void convert(std::optional<DType> dtype);

    std::map<std::string, io::HostTensor> tensors_;
    Layout layout_;
    std::vector<std::string> notes_;
    std::vector<std::filesystem::path> files_;
};

/// `view` with bhsd exchanged for bshd or back; views that are not attention tensors stay as they are.
template <class View>
[[nodiscard]] View in_layout(const View& view, Layout layout)
{
    if (layout == Layout::bshd || view.rank < 3) {
        return view;
    }
    return view.transposed(view.rank - 3, view.rank - 2);
}

} // namespace flashomp::cli
