// The same harness under libFuzzer (FLASHOMP_FUZZ, tools/fuzz).
#include "property.hpp"

FuzzFunction FLASHOMP_FUZZ_FUNCTION;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size)
{
    return FLASHOMP_FUZZ_FUNCTION(data, size);
}
