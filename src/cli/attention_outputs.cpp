#include "attention_outputs.hpp"

#include "flashomp/error.hpp"
#include "flashomp/version.hpp"

#include "atomic_file.hpp"
#include "npy.hpp"
#include "safetensors.hpp"

#include <map>
#include <system_error>

#include <fmt/format.h>
#include <unistd.h>

namespace flashomp::cli {

namespace fs = std::filesystem;

namespace {

io::Shape shape_of(const ConstTensorView& view)
{
    return {view.shape.begin(), view.shape.begin() + view.rank};
}

/// Folders made for the results; those that this object made go away again unless keep() was called.
class NewFolders {
public:
    explicit NewFolders(const fs::path& folder)
    {
        std::error_code error;
        for (fs::path part = fs::absolute(folder); !fs::exists(part, error) && part.has_relative_path();
             part = part.parent_path()) {
            if (part.has_filename()) {
                made_.push_back(part);
            }
        }
        fs::create_directories(folder, error);
        if (error) {
            remove();
            throw Error(fmt::format("{}: this folder cannot be made ({}); --out needs a folder that can be written.",
                                    folder.string(), error.message()));
        }
    }
    ~NewFolders() { remove(); }
    NewFolders(const NewFolders&) = delete;
    NewFolders& operator=(const NewFolders&) = delete;

    void keep() { made_.clear(); }

private:
    void remove()
    {
        std::error_code ignored;
        for (const fs::path& folder : made_) { // deepest first; a folder that holds something stays
            fs::remove(folder, ignored);
        }
        made_.clear();
    }

    std::vector<fs::path> made_;
};

/// The nearest folder that exists already must be one we may write to.
void check_can_be_made(const fs::path& folder)
{
    std::error_code error;
    fs::path part = fs::absolute(folder);
    while (!fs::exists(fs::symlink_status(part, error)) && part.has_relative_path()) {
        part = part.parent_path();
    }
    if (!fs::is_directory(part, error)) {
        throw Error(fmt::format("{}: {} is not a folder; --out needs a folder or a file.safetensors.", folder.string(),
                                part == fs::absolute(folder) ? std::string("this") : part.string()));
    }
    if (::access(part.c_str(), W_OK | X_OK) != 0) {
        throw Error(fmt::format("{}: {} may not be written; --out needs a folder that can be written.", folder.string(),
                                part.string()));
    }
}

} // namespace

TensorView AttentionOutputs::add(const std::string& name, DType dtype, io::Shape shape)
{
    return tensors_.emplace_back(name, io::HostTensor(dtype, std::move(shape), io::Fill::poison)).second.view();
}

TensorView AttentionOutputs::add_o(const ConstTensorView& q, const ConstTensorView& v)
{
    ConstTensorView o = q;
    if (q && v) {
        o.shape.at(static_cast<std::size_t>(q.rank - 1)) = v.shape.at(static_cast<std::size_t>(v.rank - 1));
    }
    o.dtype = output_type_of(q.dtype);
    return add_like("o", o);
}

TensorView AttentionOutputs::add_lse(const ConstTensorView& q)
{
    io::Shape shape{0};
    if (q.rank == 4) {
        shape = {q.shape[0], q.shape[2], q.shape[1]};
    } else if (q.rank == 3) {
        shape = {q.shape[1], q.shape[0]};
    }
    return add("lse", DType::float32, std::move(shape));
}

TensorView AttentionOutputs::add_like(const std::string& name, const ConstTensorView& like)
{
    // The same exchange of axes twice: once to the order of the files, once back.
    return in_layout(add(name, like.dtype, shape_of(in_layout(like, layout_))), layout_);
}

TensorView AttentionOutputs::add_plain(const std::string& name, const ConstTensorView& like)
{
    return add(name, like.dtype, shape_of(like));
}

OutputPlace::OutputPlace(fs::path out, const std::vector<std::string>& names, const std::vector<fs::path>& inputs)
    : out_(std::move(out)), one_file_(out_.extension() == ".safetensors")
{
    if (out_.empty()) {
        throw Error("--out was ''; allowed is a folder or a file.safetensors.");
    }
    check_can_be_made(one_file_ ? fs::absolute(out_).parent_path() : out_);
    for (const std::string& name : names) {
        const fs::path file = file_of(name);
        std::error_code error;
        if (fs::exists(file, error) && !fs::is_regular_file(file, error)) {
            throw Error(fmt::format("{}: this exists and is not a regular file; an output may only replace a regular "
                                    "file.",
                                    file.string()));
        }
        for (const fs::path& input : inputs) {
            if (fs::equivalent(file, input, error)) {
                throw Error(fmt::format("{}: writing {} here would overwrite the input {}; --out needs another place.",
                                        file.string(), name, input.string()));
            }
        }
    }
}

fs::path OutputPlace::file_of(const std::string& name) const
{
    return one_file_ ? out_ : out_ / (name + ".npy");
}

std::vector<Written> OutputPlace::write(const AttentionOutputs& outputs, Layout layout) const
{
    NewFolders folders(one_file_ ? fs::absolute(out_).parent_path() : out_);
    io::OutputSet files;
    std::map<std::string, ConstTensorView> all;
    std::vector<Written> written;
    for (const auto& [name, tensor] : outputs.tensors()) {
        const ConstTensorView view = tensor.view();
        all.emplace(name, view);
        written.push_back({name, io::describe(tensor.dtype(), tensor.shape()), file_of(name)});
        if (!one_file_) {
            files.add(file_of(name), [view](io::StagedFile& file) { io::write_npy(file, view); });
        }
    }
    if (one_file_) {
        files.add(out_, [&all, layout](io::StagedFile& file) {
            io::write_safetensors(
                file, all, {{"flashomp", build_info().version}, {"layout", layout == Layout::bshd ? "bshd" : "bhsd"}});
        });
    }
    files.commit();
    folders.keep();
    return written;
}

} // namespace flashomp::cli
