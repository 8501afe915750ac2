#include "safetensors.hpp"

#include "elements.hpp"
#include "input_file.hpp"
#include "message.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

namespace flashomp::io {

std::map<std::string, HostTensor> read_safetensors(const std::filesystem::path& path, Metadata* metadata)
{
    InputFile file(path);
    SafetensorsHeader header = read_safetensors_header(file);
    std::map<std::string, HostTensor> tensors;
    for (SafetensorsEntry& entry : header.entries) { // in the order of their bytes
        HostTensor tensor(entry.dtype, std::move(entry.shape), Fill::nothing);
        read_elements(file, tensor);
        tensors.emplace(std::move(entry.name), std::move(tensor));
    }
    if (metadata != nullptr) {
        *metadata = std::move(header.metadata);
    }
    return tensors;
}

void write_safetensors(StagedFile& file, const std::map<std::string, ConstTensorView>& tensors,
                       const Metadata& metadata)
{
    SafetensorsHeader header{{}, metadata};
    for (const auto& [name, view] : tensors) {
        check_writable(file.path(), view);
        header.entries.push_back({name, view.dtype, shape_of(view), 0, 0});
    }
    std::stable_sort(header.entries.begin(), header.entries.end(),
                     [](const auto& left, const auto& right) { return size_of(left.dtype) > size_of(right.dtype); });
    std::int64_t position = 0;
    for (SafetensorsEntry& entry : header.entries) {
        const std::int64_t bytes = checked_bytes(entry.dtype, entry.shape).value();
        if (bytes > std::numeric_limits<std::int64_t>::max() - position) {
            fail(file.path(), "the tensors to write take more than 2^63 - 1 bytes; no file can hold them.");
        }
        entry.begin = position;
        position += bytes;
        entry.end = position;
    }
    const std::string text = safetensors_header_text(header, file.path());
    file.write(text.data(), static_cast<std::int64_t>(text.size()));
    for (const SafetensorsEntry& entry : header.entries) {
        write_elements(file, tensors.at(entry.name));
    }
}

void write_safetensors(const std::filesystem::path& path, const std::map<std::string, ConstTensorView>& tensors,
                       const Metadata& metadata)
{
    StagedFile file(path);
    write_safetensors(file, tensors, metadata);
    file.publish();
}

} // namespace flashomp::io
