#include "shapes.hpp"

#include "flashomp/error.hpp"

#include <fmt/format.h>
#include <fstream>
#include <sstream>

namespace flashomp::bench {

std::string Shape::name() const
{
    std::string text = fmt::format("b{}_h{}", batch, heads_q);
    text += heads_kv == heads_q ? "" : fmt::format("kv{}", heads_kv);
    text += seqlen_q == seqlen_k ? fmt::format("_n{}", seqlen_q) : fmt::format("_n{}x{}", seqlen_q, seqlen_k);
    text += head_dim == head_dim_v ? fmt::format("_d{}", head_dim) : fmt::format("_d{}v{}", head_dim, head_dim_v);
    return text + (causal == Causal::none ? "" : causal == Causal::top_left ? "_topleft" : "_causal");
}

double Shape::flops(bool backward) const
{
    const double products = 2.0 * static_cast<double>(batch * heads_q) * static_cast<double>(seqlen_q) *
                            static_cast<double>(seqlen_k) * static_cast<double>(head_dim + head_dim_v);
    return products * (causal == Causal::none ? 1.0 : 0.5) * (backward ? 2.5 : 1.0);
}

std::vector<Shape> read_shapes(const std::string& path)
{
    std::ifstream file(path);
    if (!file) {
        throw Error(fmt::format("shapes file {} cannot be read; it must exist.", path));
    }
    std::vector<Shape> shapes;
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
        line = line.substr(0, line.find('#'));
        std::istringstream words(line);
        Shape s;
        std::string causal;
        if (!(words >> s.batch)) {
            continue;
        }
        if (!(words >> s.heads_q >> s.heads_kv >> s.seqlen_q >> s.seqlen_k >> s.head_dim >> s.head_dim_v >> causal) ||
            (causal != "none" && causal != "top-left" && causal != "bottom-right")) {
            throw Error(fmt::format("{}:{} is '{}'; it must be batch heads_q heads_kv seqlen_q seqlen_k head_dim "
                                    "head_dim_v none|top-left|bottom-right.",
                                    path, number, line));
        }
        s.causal = causal == "none" ? Causal::none : causal == "top-left" ? Causal::top_left : Causal::bottom_right;
        shapes.push_back(s);
    }
    return shapes;
}

} // namespace flashomp::bench
