// Calls of a test, and of the programs that it starts, use no tuning table: not one of whoever runs the tests, and not
// the shipped one, either.
#include <cstdlib>

namespace {

[[maybe_unused]] const int set = setenv("FLASHOMP_TUNING", "off", 1);

} // namespace
