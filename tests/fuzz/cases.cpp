// cli::parse_cases(): the list that `flashomp check` reads.
#include "property.hpp"

#include "check_cases.hpp"

FuzzFunction fuzz_cases;

int fuzz_cases(const std::uint8_t* data, std::size_t size)
{
    using namespace flashomp;
    const std::string text(reinterpret_cast<const char*>(data), size);
    fuzz::succeeds_or_refuses([&] {
        for (const cli::CheckCase& one : cli::parse_cases(text, "cases")) {
            if (one.options.window.left < -1 || one.options.window.right < -1) {
                fuzz::violated("a window is -1 or more", one.name);
            }
            for (const auto& [name, file] : one.inputs) {
                if (file.parent_path() != std::filesystem::path("cases") / one.name) {
                    fuzz::violated("a case's files lie in its folder", name);
                }
            }
        }
    });
    return 0;
}
