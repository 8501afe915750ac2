// cost::parse_shape(), and the costs of the shapes that it accepts.
#include "property.hpp"

#include "shape.hpp"
#include "traffic.hpp"
#include "work.hpp"

#include <cmath>

FuzzFunction fuzz_shape;

int fuzz_shape(const std::uint8_t* data, std::size_t size)
{
    using namespace flashomp;
    fuzz::succeeds_or_refuses([&] {
        const cost::Shape shape = cost::parse_shape(std::string(reinterpret_cast<const char*>(data), size));
        const std::string name = shape.name();
        if (cost::parse_shape(name).name() != name) {
            fuzz::violated("a shape's name says all of it", name);
        }
        const double flops = cost::flops(shape).forward;
        const double bytes = cost::least_traffic(shape, DType::float32, true).total();
        if (!std::isfinite(flops) || !(flops >= 0) || !std::isfinite(bytes) || !(bytes > 0)) {
            fuzz::violated("costs are finite", name);
        }
    });
    return 0;
}
