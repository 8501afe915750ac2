// What the plain machine takes of long rows at a time (plain/sliced_machine.hpp).
#pragma once

namespace flashomp::offload {

inline constexpr int plain_slice = 16; ///< columns

} // namespace flashomp::offload
