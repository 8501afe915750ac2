#include "printing.hpp"

#include "flashomp/error.hpp"

#include <fcntl.h>
#include <unistd.h>

namespace gpt {

void note(const std::string& sentence)
{
    const std::string line = "gpt: " + sentence + "\n";
    std::fwrite(line.data(), 1, line.size(), stderr); // where that fails there is nobody to tell
}

void expect_printed()
{
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
        throw flashomp::Error(
            "the results cannot be printed to standard output; it must be open and have room for them.");
    }
}

void hold_standard_streams()
{
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (::fcntl(stream, F_GETFD) < 0) { // the lowest free number is this one
            static_cast<void>(::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY));
        }
    }
}

} // namespace gpt
