// The command-line options that say what one attention call computes and where: shared by forward, backward, check.
#pragma once

#include "flashomp/options.hpp"
#include "flashomp/tensor.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace flashomp::cli {

/// Order of the axes in files of q, k, v, do and of everything shaped like them. Without the batch axis when packed.
enum class Layout : std::uint8_t { bshd, bhsd };

/// Where and how to run.
struct RunFlags {
    std::optional<DType> dtype; ///< convert the inputs to this; unset: what the files hold
    Backend backend = Backend::automatic;
    Machine machine = Machine::automatic;
    Device device;
    int threads = 0;
    bool json = false;
};

/// Everything `forward` and `backward` are told. Tensors are still files here.
struct AttentionFlags {
    RunFlags run;
    Options semantics; ///< all but the tensors and the choices in `run`
    Layout layout = Layout::bshd;
    std::string in;                           ///< a .safetensors file; empty when not given
    std::string out;                          ///< a folder or a .safetensors file
    std::map<std::string, std::string> files; ///< tensor name (q, alibi_slopes, ...) to .npy file
};

/// A tensor that may come from its own .npy file.
struct InputTensor {
    const char* name; ///< as in a .safetensors file
    const char* flag; ///< as on the command line
    std::string help;
    bool backward_only = false, forward_only = false;
};

/// Every tensor that forward or backward can read.
[[nodiscard]] const std::vector<InputTensor>& input_tensors();

/// "--alibi" for "alibi_slopes".
[[nodiscard]] const char* flag_of(const std::string& tensor_name);

/// "auto", "host" or a GPU's number, as --device takes them. Throws Error for anything else.
[[nodiscard]] Device parse_device(const std::string& text);

/// Adds --dtype, --backend, --device, --machine, --threads and --json. A value that is not allowed throws Error.
void add_run_options(CLI::App& command, RunFlags& flags, bool allows_float8 = false);

/// The value of --window. Throws Error when it is none.
[[nodiscard]] Window parse_window(const std::string& text);

/// Adds the options of add_run_options() and those of tensors, semantics, layout and files.
void add_attention_options(CLI::App& command, AttentionFlags& flags, bool backward);

/// The options of one call; tensors are filled in when they are loaded.
[[nodiscard]] Options call_options(const Options& semantics, const RunFlags& run);

/// "bottom-right" and so on.
[[nodiscard]] const char* name_of(Causal causal);

/// "openmp" and so on, as --backend takes them.
[[nodiscard]] const char* name_of(Backend backend);

/// "hopper" and so on, as --machine takes them.
[[nodiscard]] std::string name_of(Machine machine);

} // namespace flashomp::cli
