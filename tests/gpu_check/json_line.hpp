// Prints JSON objects, one per line, which scripts/gpu_check reads.
#pragma once

#include <cmath>
#include <cstdio>
#include <string>

namespace maestro::gpu_check {

class JsonLine {
public:
    explicit JsonLine(const char* kind) { add("kind", kind); }
    JsonLine& add(const char* key, const std::string& value) { return raw(key, quoted(value)); }
    JsonLine& add(const char* key, const char* value) { return raw(key, quoted(value)); }
    JsonLine& add(const char* key, bool value) { return raw(key, value ? "true" : "false"); }
    /// NaN and Inf become null.
    JsonLine& add(const char* key, double value) {
        char text[40];
        std::snprintf(text, sizeof text, "%.6g", value);
        return raw(key, std::isfinite(value) ? text : "null");
    }
    void print() const {
        std::printf("{%s}\n", text_.c_str());
        std::fflush(stdout);
    }

private:
    static std::string quoted(const std::string& value) {
        std::string text = "\"";
        for (const char c : value) {
            if (c == '"' || c == '\\') text += '\\';
            text += c < ' ' ? ' ' : c;
        }
        return text + "\"";
    }
    JsonLine& raw(const char* key, const std::string& value) {
        text_ += (text_.empty() ? "" : ", ") + quoted(key) + ": " + value;
        return *this;
    }
    std::string text_;
};

}  // namespace maestro::gpu_check
