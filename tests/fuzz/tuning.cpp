// tuning::parse_tables(); what it accepts is written and read once more, and has the same choices.
#include "property.hpp"

#include "file.hpp"

#include <algorithm>
#include <string>
#include <vector>

FuzzFunction fuzz_tuning;

int fuzz_tuning(const std::uint8_t* data, std::size_t size)
{
    using namespace flashomp;
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    fuzz::succeeds_or_refuses([&] {
        const std::vector<tuning::Table> tables = tuning::parse_tables(text, "tuning.json");
        const std::string written = tuning::json_text(tables);
        const std::vector<tuning::Table> again = tuning::parse_tables(written, "written.json");
        const auto is_same = [](const tuning::Table& a, const tuning::Table& b) {
            return a.key == b.key && std::equal(a.entries.begin(), a.entries.end(), b.entries.begin(), b.entries.end(),
                                                [](const auto& one, const auto& other) {
                                                    return one.second.choice == other.second.choice;
                                                });
        };
        if (!std::equal(tables.begin(), tables.end(), again.begin(), again.end(), is_same)) {
            fuzz::violated("a table that is written is read as it was", written);
        }
    });
    return 0;
}
