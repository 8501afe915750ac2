#include "report.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace experiment {

namespace {

std::string image_name;
std::FILE* json = nullptr;
int failed = 0;

std::string quoted(const std::string& raw)
{
    std::string out = "\"";
    for (const char c : raw) {
        if (c == '"' || c == '\\') {
            out += '\\';
        }
        out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
    return out + "\"";
}

void line(const std::string& key, const std::string& shown, const std::string& value, const char* unit,
          const std::string& note)
{
    std::printf("%-8s %-44s %14s %-5s %s\n", image_name.c_str(), key.c_str(), shown.c_str(), unit, note.c_str());
    std::fflush(stdout);
    if (json != nullptr) {
        std::fprintf(json, "{\"image\": %s, \"key\": %s, \"value\": %s, \"unit\": \"%s\", \"note\": %s}\n",
                     quoted(image_name).c_str(), quoted(key).c_str(), value.c_str(), unit, quoted(note).c_str());
        std::fflush(json);
    }
}

} // namespace

void begin_report(const std::string& image)
{
    image_name = image;
    if (const char* path = std::getenv("EXPERIMENT_JSON")) {
        json = std::fopen(path, "a");
        if (json == nullptr) {
            std::fprintf(stderr, "experiment: %s cannot be written; the table alone has the results.\n", path);
        }
    }
}

void number(const std::string& key, double value, const char* unit, const std::string& note)
{
    const std::string shown = text("%.*f", value == static_cast<double>(static_cast<long long>(value)) ? 0 : 2, value);
    line(key, shown, shown, unit, note);
}

bool holds(const std::string& key, bool ok, const std::string& note)
{
    line(key, ok ? "yes" : "NO", ok ? "true" : "false", "", note);
    failed += ok ? 0 : 1;
    return ok;
}

void fact(const std::string& key, const std::string& value)
{
    line(key, "", quoted(value), "", value);
}

int failures()
{
    return failed;
}

std::string text(const char* format, ...)
{
    char buffer[1024];
    std::va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(buffer, sizeof buffer, format, arguments);
    va_end(arguments);
    return buffer;
}

} // namespace experiment
