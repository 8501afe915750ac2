// A device's memory and work as a site (src/dispatch/device_work.hpp).
#include "messages.hpp"
#include "site.hpp"

#include "device_work.hpp"

#include <exception>
#include <string>
#include <utility>

namespace flashomp::mpi {

namespace {

class DeviceSite : public Site {
public:
    explicit DeviceSite(const Options& options)
        : work_(options), is_reached_(work_.has_cuda_memory() && mpi_takes_device_memory())
    {
    }

    [[nodiscard]] Memory memory() const override { return Memory::device; }
    [[nodiscard]] bool is_reached_by_mpi() const override { return is_reached_; }
    [[nodiscard]] Options options_of_calls(const Options& given) const override
    {
        Options options = given;
        options.stream = work_.options().stream;
        return options;
    }

    std::shared_ptr<std::byte> allocate(std::int64_t bytes) override { return work_.memory(bytes); }
    std::shared_ptr<std::byte> allocate_stage(std::int64_t bytes) override { return work_.page_locked(bytes); }

    void copy(const ConstTensorView& from, const TensorView& to) noexcept override
    {
        attempt([&] { work_.copy(from, to); });
    }
    void add(const ConstTensorView& terms, const TensorView& sums) noexcept override
    {
        attempt([&] { work_.add(terms, sums); });
    }
    void convert(const ConstTensorView& from, const TensorView& to) noexcept override
    {
        attempt([&] { from.dtype == to.dtype ? work_.copy(from, to) : work_.convert(from, to); });
    }
    void unpack_bits(const ConstTensorView& bits, std::int64_t first, const TensorView& booleans) noexcept override
    {
        attempt([&] { work_.unpack_bits(bits, first, booleans); });
    }
    void fill(const TensorView& tensor, float value) noexcept override
    {
        attempt([&] { work_.fill(tensor, value); });
    }

    void wait() noexcept override
    {
        attempt([&] { work_.wait(); });
    }
    bool is_idle() noexcept override { return work_.is_idle(); }
    void expect_no_failure() override
    {
        if (!failure_.empty()) {
            throw RunFailure(std::exchange(failure_, {}));
        }
    }

    Mark mark() noexcept override { return work_.mark(); }
    bool is_past(const Mark& mark) noexcept override { return work_.is_past(mark); }
    Mark copy_out(std::byte* stage, const std::byte* here, std::int64_t bytes, const Mark& after) noexcept override
    {
        return work_.copy_out(stage, here, bytes, after);
    }
    Mark copy_in(std::byte* here, const std::byte* stage, std::int64_t bytes, const Mark& after) noexcept override
    {
        return work_.copy_in(here, stage, bytes, after);
    }

private:
    template <class F>
    void attempt(F f) noexcept
    {
        try {
            f();
        } catch (const std::exception& failed) {
            failure_ = failure_.empty() ? failed.what() : failure_;
        }
    }

    DeviceWork work_;
    bool is_reached_;
    std::string failure_;
};

} // namespace

std::unique_ptr<Site> device_site(const Options& options)
{
    return std::make_unique<DeviceSite>(options);
}

} // namespace flashomp::mpi
