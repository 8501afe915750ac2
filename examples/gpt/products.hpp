// What computes products of matrices: Eigen, or a BLAS that Eigen calls (FLASHOMP_GPT_BLAS in CMake).
#pragma once

#include <string>

namespace gpt {

/// "Eigen 3.4.0", or "BLAS (libopenblasp-r0.3.21.so)". The bits of results depend on it.
[[nodiscard]] std::string products_library();

/// A block of rows is one thread's: OpenBLAS, where products are its, then starts no threads for a block.
void keep_products_in_their_thread();

} // namespace gpt
