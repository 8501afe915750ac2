#include "image.hpp"

#include <cstring>

namespace flashomp {

void Image::write_bytes(std::int64_t at, const void* bytes, std::size_t count)
{
    if (count > 0) {
        std::memcpy(here_.data() + at, bytes, count);
    }
}

} // namespace flashomp
