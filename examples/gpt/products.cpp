#include "products.hpp"

#include <Eigen/Core>

#include <fmt/format.h>

#if defined(FLASHOMP_GPT_HAS_OPENBLAS)
extern "C" void openblas_set_num_threads(int threads);
#endif

namespace gpt {

std::string products_library()
{
#if defined(FLASHOMP_GPT_BLAS)
    return FLASHOMP_GPT_BLAS;
#else
    return fmt::format("Eigen {}.{}.{}", EIGEN_WORLD_VERSION, EIGEN_MAJOR_VERSION, EIGEN_MINOR_VERSION);
#endif
}

void keep_products_in_their_thread()
{
#if defined(FLASHOMP_GPT_HAS_OPENBLAS)
    openblas_set_num_threads(1);
#endif
}

} // namespace gpt
