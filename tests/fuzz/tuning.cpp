// tuning::parse_tables(); what it accepts is written and read once more and stays the same.
#include "property.hpp"

#include "file.hpp"

FuzzFunction fuzz_tuning;

int fuzz_tuning(const std::uint8_t* data, std::size_t size)
{
    using namespace flashomp;
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    fuzz::succeeds_or_refuses([&] {
        const std::string written = tuning::json_text(tuning::parse_tables(text, "tuning.json"));
        if (tuning::json_text(tuning::parse_tables(written, "written.json")) != written) {
            fuzz::violated("a table that is written is read as it was", written);
        }
    });
    return 0;
}
