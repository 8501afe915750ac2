#include "json_text.hpp"

#include "message.hpp"

#include <cstddef>
#include <utility>
#include <vector>

namespace flashomp::io {

namespace {

using nlohmann::json;

constexpr std::size_t most_in_container = std::size_t{1} << 20;

/// What nlohmann's parser tells, event by event, put together with our limits.
class Builder final : public nlohmann::json_sax<json> {
public:
    Builder(std::size_t deepest, const OnMember& on_member) : deepest_(deepest), on_member_(on_member) {}

    json result() { return std::move(root_); }

    bool null() override { return add(nullptr); }
    bool boolean(bool value) override { return add(value); }
    bool number_integer(number_integer_t value) override { return add(value); }
    bool number_unsigned(number_unsigned_t value) override { return add(value); }
    bool number_float(number_float_t value, const string_t& /*text*/) override { return add(value); }
    bool string(string_t& value) override { return add(std::move(value)); }
    bool binary(binary_t& /*value*/) override { return false; } // not in JSON
    bool start_object(std::size_t /*elements*/) override { return open(json::object()); }
    bool start_array(std::size_t /*elements*/) override { return open(json::array()); }
    bool end_object() override { return close(); }
    bool end_array() override { return close(); }

    bool key(string_t& name) override
    {
        json& object = *open_.back();
        if (open_.size() > 1 && object.size() >= most_in_container) {
            throw JsonProblem(fmt::format("has more than {} members in an object", most_in_container));
        }
        const auto [place, is_new] = object.get_ref<json::object_t&>().try_emplace(name);
        if (!is_new) {
            throw JsonProblem(fmt::format("has the key {} twice in one object", in_quotes(name)));
        }
        if (open_.size() == 1) {
            member_ = name;
        }
        slot_ = &place->second;
        return true;
    }

    bool parse_error(std::size_t position, const std::string& /*token*/, const json::exception& error) override
    {
        constexpr int out_of_range = 406; // nlohmann's number for it
        if (error.id == out_of_range) {
            throw JsonProblem(fmt::format("has a number out of range at byte {}", position));
        }
        throw JsonProblem(fmt::format("is not valid JSON at byte {}", position));
    }

private:
    /// Puts a value where it belongs. Containers are filled after that, in place.
    json& put(json value)
    {
        if (open_.empty()) {
            root_ = std::move(value);
            return root_;
        }
        if (!open_.back()->is_array()) {
            *slot_ = std::move(value);
            return *slot_;
        }
        auto& array = open_.back()->get_ref<json::array_t&>();
        if (array.size() >= most_in_container) {
            throw JsonProblem(fmt::format("has more than {} values in an array", most_in_container));
        }
        return array.emplace_back(std::move(value));
    }

    bool add(json value)
    {
        hand_over(put(std::move(value)));
        return true;
    }

    bool open(json container)
    {
        if (open_.size() >= deepest_) {
            throw JsonProblem(fmt::format("is nested more than {} levels deep", deepest_));
        }
        open_.push_back(&put(std::move(container)));
        return true;
    }

    bool close()
    {
        json& closed = *open_.back();
        open_.pop_back();
        hand_over(closed);
        return true;
    }

    /// `value` is complete.
    void hand_over(json& value)
    {
        if (on_member_ && open_.size() == 1 && root_.is_object()) {
            on_member_(member_, std::exchange(value, nullptr));
        }
    }

    std::size_t deepest_;
    const OnMember& on_member_;
    json root_;
    std::vector<json*> open_; ///< containers, the outermost first; none moves while it is open
    json* slot_ = nullptr;    ///< what the last key names
    std::string member_;      ///< the last key of the outermost object
};

} // namespace

json parse_json(std::string_view text, std::size_t deepest, const OnMember& on_member)
{
    Builder builder(deepest, on_member);
    if (!json::sax_parse(text, &builder)) {
        throw JsonProblem("is not valid JSON");
    }
    return builder.result();
}

} // namespace flashomp::io
