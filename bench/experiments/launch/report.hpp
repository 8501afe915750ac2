// One line a finding: a row of a table on stdout, and a line of JSON in the file that EXPERIMENT_JSON names.
#pragma once

#include <string>

namespace experiment {

/// Opens the file. `image` names the program's kind of GPU code in every line.
void begin_report(const std::string& image);

/// A number. `key` is the finding's stable name.
void number(const std::string& key, double value, const char* unit, const std::string& note = "");

/// Whether something holds; counts those that do not.
bool holds(const std::string& key, bool ok, const std::string& note = "");

/// A sentence.
void fact(const std::string& key, const std::string& text);

int failures();

/// printf into a string.
std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));

} // namespace experiment
