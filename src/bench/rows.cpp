#include "rows.hpp"

#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace flashomp::bench {

namespace {

/// What Sample::text() says, for programs: spans are [first, count].
Json sample_json(const Sample& sample, bool backward)
{
    const auto spans = [](const std::vector<reference::Span>& list) {
        Json json = Json::array();
        for (const reference::Span& span : list) {
            json.push_back({span.first, span.count});
        }
        return json;
    };
    const std::int64_t group = sample.shape.heads_q / sample.shape.heads_kv;
    Json parts = Json::array();
    for (const reference::Chosen& part : sample.parts) {
        Json& json = parts.emplace_back(Json{{"sequence", part.sequence},
                                             {"heads", {part.head_kv * group, group}},
                                             {"rows", spans(part.rows)},
                                             {"row_tensors", {"o", "lse"}}});
        if (backward) {
            json["row_tensors"].push_back("dq");
            if (part.has_dbias) {
                json["row_tensors"].push_back("dbias");
            }
            json["key_head"] = part.head_kv;
            json["keys"] = spans(part.keys);
            json["key_tensors"] = part.keys.empty() ? Json::array() : Json{"dk", "dv"};
        }
    }
    return parts;
}

void add_accuracy(Json& json, const Accuracy& accuracy)
{
    const auto add = [&json](const std::string& name, double error, double bound) {
        json["error_" + name] = error;
        json["bound_" + name] = bound;
    };
    add("o", accuracy.o, accuracy.bound_o);
    add("lse", accuracy.lse, accuracy.bound_lse);
    if (accuracy.has_gradients) {
        add("dq", accuracy.dq, accuracy.bound_dq);
    }
    if (accuracy.has_dbias) {
        add("dbias", accuracy.dbias, accuracy.bound_dbias);
    }
    if (accuracy.has_dkv) {
        add("dk", accuracy.dk, accuracy.bound_dk);
        add("dv", accuracy.dv, accuracy.bound_dv);
    }
    if (accuracy.unrounded_o && accuracy.unrounded_rms) {
        json["error_o_unrounded"] = *accuracy.unrounded_o;
        json["rms_o_unrounded"] = *accuracy.unrounded_rms;
    }
    json["nearest_limit"] = accuracy.nearest;
    if (std::isfinite(accuracy.nearest_share)) {
        json["nearest_limit_share"] = accuracy.nearest_share;
    }
    json["compared"] = accuracy.compared;
    json["compared_after_timing"] = accuracy.after_timing;
    if (accuracy.sample) {
        json["compared_parts"] = sample_json(*accuracy.sample, accuracy.has_gradients);
    }
}

/// A field of CSV: quoted where it must be (RFC 4180).
std::string quoted(const std::string& text)
{
    if (text.find_first_of(",\"\n") == std::string::npos) {
        return text;
    }
    std::string result = "\"";
    for (const char letter : text) {
        result += letter == '"' ? "\"\"" : std::string(1, letter);
    }
    return result + "\"";
}

} // namespace

Json row_json(const Row& row)
{
    Json json;
    json["name"] = row.name() + "/real_time_median";
    json["run_name"] = row.name() + "/real_time";
    json["run_type"] = "aggregate";
    json["aggregate_name"] = "median";
    json["implementation"] = row.implementation;
    json["label"] = row.backend.empty()   ? row.implementation
                    : row.machine.empty() ? fmt::format("{} on {}", row.backend, row.ran_on)
                                          : fmt::format("{}:{} on {}", row.backend, row.machine, row.ran_on);
    for (const auto& [key, text] :
         {std::pair{"direction", &row.direction}, std::pair{"dtype", &row.dtype}, std::pair{"shape", &row.shape},
          std::pair{"backend", &row.backend}, std::pair{"machine", &row.machine}, std::pair{"ran_on", &row.ran_on}}) {
        json[key] = *text;
    }
    if (!row.model.empty()) {
        json["model"] = row.model;
    }
    json["on_device"] = row.on_device ? 1.0 : 0.0;
    json["tuned"] = row.tuned;
    json["flops"] = row.flops;
    json["tile_bytes"] = row.tile_bytes;
    json["least_bytes"] = row.least_bytes;
    if (!row.failure.empty()) {
        json["error_occurred"] = true;
        json["error_message"] = row.failure;
        json["is_wrong"] = row.is_wrong;
        return json;
    }
    json["repetitions"] = row.timing.repetitions;
    json["iterations"] = row.timing.calls;
    json["real_time"] = row.timing.median * 1e3;
    json["least_time"] = row.timing.least * 1e3;
    json["most_time"] = row.timing.most * 1e3;
    if (row.kernel_seconds) {
        json["kernel_time"] = *row.kernel_seconds * 1e3;
        json["least_kernel_time"] = row.kernel_least * 1e3;
        json["most_kernel_time"] = row.kernel_most * 1e3;
    }
    if (row.queue_seconds) {
        json["queue_time"] = *row.queue_seconds * 1e3;
    }
    if (const std::optional<double> share = row.bandwidth_share()) {
        json["copy_bandwidth"] = *row.copy_bandwidth;
        json["bandwidth_share"] = *share;
        json["read_bandwidth"] = row.read_bandwidth.value_or(0);
    }
    if (const std::optional<double> share = row.bound_share()) {
        json["bound_time"] = *row.bound_seconds * 1e3;
        json["bound_share"] = *share;
    }
    json["time_unit"] = "ms";
    json["spread"] = row.timing.spread();
    json["TFLOP/s"] = row.flops_per_second() * 1e-12;
    add_accuracy(json, row.accuracy);
    json["peak_bytes"] = row.peak_bytes ? Json(*row.peak_bytes) : Json();
    json["extra_bytes"] = row.extra_bytes;
    json["standard_bytes"] = row.standard_bytes;
    return json;
}

std::string file_text(const Json& context, const std::vector<Row>& rows)
{
    Json file{{"context", context}, {"benchmarks", Json::array()}};
    for (const Row& row : rows) {
        file["benchmarks"].push_back(row_json(row));
    }
    return file.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string csv_text(const std::vector<Row>& rows)
{
    std::string text =
        "direction,dtype,shape,implementation,backend,machine,ran_on,on_device,median_ms,least_ms,most_ms,"
        "kernel_ms,"
        "repetitions,tflops,error_o,bound_o,peak_bytes,compared,failure\n";
    for (const Row& row : rows) {
        const bool timed = row.failure.empty();
        text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", row.direction, row.dtype,
                            row.shape, row.implementation, row.backend, row.machine, quoted(row.ran_on),
                            row.on_device ? 1 : 0, timed ? fmt::format("{:.6g}", row.timing.median * 1e3) : "",
                            timed ? fmt::format("{:.6g}", row.timing.least * 1e3) : "",
                            timed ? fmt::format("{:.6g}", row.timing.most * 1e3) : "",
                            row.kernel_seconds ? fmt::format("{:.6g}", *row.kernel_seconds * 1e3) : "",
                            timed ? std::to_string(row.timing.repetitions) : "",
                            timed ? fmt::format("{:.6g}", row.flops_per_second() * 1e-12) : "",
                            timed ? fmt::format("{:.3e}", row.accuracy.o) : "",
                            timed ? fmt::format("{:.3e}", row.accuracy.bound_o) : "",
                            row.peak_bytes ? std::to_string(*row.peak_bytes) : "", quoted(row.accuracy.compared),
                            quoted(row.failure));
    }
    return text;
}

} // namespace flashomp::bench
