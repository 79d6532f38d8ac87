// JSON as the C++ harness reads it, and the tagged JSON that it writes.
#ifndef SANDBOX_HARNESS_JSON_HPP
#define SANDBOX_HARNESS_JSON_HPP
#include <bits/stdc++.h>

namespace sandbox_harness {

struct Misfit : std::runtime_error { using std::runtime_error::runtime_error; };

template <class T> struct Same { using type = T; };
template <class T> constexpr bool unsupported = false;

// ---- JSON, as the judge has checked it ------------------------------------------------------------------------------

struct Json {
    enum Kind { Null, Truth, Number, Text, List, Object } kind = Null;
    std::string text;                                // Number: as written; Text: UTF-8; Truth: "true" or "false"
    std::vector<Json> items;                         // List; Object: the values
    std::vector<std::string> keys;                   // Object
};

class Reader {
    const std::string &text;
    size_t at = 0;

    void skip() { while (at < text.size() && std::isspace((unsigned char)text[at])) at++; }

    bool more(char end) {                            // passes over a comma; false at the closing bracket
        skip();
        if (text.at(at) == ',') at++, skip();
        if (text.at(at) != end) return true;
        at++;
        return false;
    }

    unsigned hex() {
        unsigned code = std::stoul(text.substr(at + 1, 4), nullptr, 16);
        at += 4;
        return code;
    }

    static void put(std::string &out, unsigned code) {
        int tail = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
        static const unsigned first[] = {0, 0xC0, 0xE0, 0xF0};
        out += char(first[tail] | code >> 6 * tail);
        while (tail-- > 0) out += char(0x80 | (code >> 6 * tail & 0x3F));
    }

    std::string string() {
        std::string out;
        for (at++; text.at(at) != '"'; at++) {
            if (text[at] != '\\') { out += text[at]; continue; }
            static const std::string names = "nrtbf", meant = "\n\r\t\b\f";
            char c = text.at(++at);
            if (c == 'u') {
                unsigned code = hex();
                if (code >> 10 == 0x36 && text.compare(at + 1, 2, "\\u") == 0) at += 2, code = 0x10000 + ((code & 0x3FF) << 10) + (hex() & 0x3FF);
                put(out, code);
            } else {
                size_t known = names.find(c);
                out += known == std::string::npos ? c : meant[known];
            }
        }
        at++;
        return out;
    }

public:
    explicit Reader(const std::string &text) : text(text) {}

    Json read() {
        skip();
        Json json;
        char c = text.at(at);
        if (c == '"') json.kind = Json::Text, json.text = string();
        else if (c == '[') for (json.kind = Json::List, at++; more(']');) json.items.push_back(read());
        else if (c == '{') for (json.kind = Json::Object, at++; more('}');) {
            json.keys.push_back(string());
            skip();
            at++;                                    // the colon
            json.items.push_back(read());
        } else {
            size_t end = text.find_first_of(",]} \t\r\n", at);
            json.text = text.substr(at, end - at);
            at = std::min(end, text.size());
            json.kind = json.text == "null" ? Json::Null : json.text == "true" || json.text == "false" ? Json::Truth : Json::Number;
        }
        return json;
    }
};

// ---- values to the tagged JSON of sandbox/values.py -----------------------------------------------------------------

struct Out : std::string { using std::string::string; };  // of this namespace, so that `to` is found for every type

inline void to(Out &out, bool value) { out += value ? "true" : "false"; }
inline void to(Out &out, std::nullptr_t) { out += "null"; }

inline void to(Out &out, const std::string &value) {
    out += '"';
    for (unsigned char c : value) {
        char escaped[8];
        if (c == '"' || c == '\\') out += '\\', out += char(c);
        else if (c < 32) std::snprintf(escaped, sizeof escaped, "\\u%04x", c), out += escaped;
        else out += char(c);
    }
    out += '"';
}

inline void to(Out &out, const char *value) { to(out, std::string(value)); }
inline void to(Out &out, char value) { to(out, std::string(1, value)); }

template <class T> std::enable_if_t<std::is_floating_point_v<T>> to(Out &out, T value) {
    char text[64];
    if (std::isnan(value)) { out += "NaN"; return; }
    if (std::isinf(value)) { out += value < 0 ? "-Infinity" : "Infinity"; return; }
    std::snprintf(text, sizeof text, "%.*g", std::is_same_v<T, float> ? 9 : 17, double(value));
    out += text;
    if (!std::strpbrk(text, ".e")) out += ".0";     // so that it reads as a float
}

template <class T> std::enable_if_t<std::is_integral_v<T>> to(Out &out, T value) {
    bool negative = value < 0;
    unsigned __int128 size = negative ? 0 - (unsigned __int128)value : (unsigned __int128)value;
    if (size < 1ull << 53) { out += (negative ? "-" : "") + std::to_string((unsigned long long)size); return; }
    char text[64];
    int start = std::snprintf(text, sizeof text, "{\"i\":\"%s0x", negative ? "-" : "");
    auto high = (unsigned long long)(size >> 64), low = (unsigned long long)size;
    if (high) std::snprintf(text + start, sizeof text - start, "%llx%016llx\"}", high, low);
    else std::snprintf(text + start, sizeof text - start, "%llx\"}", low);
    out += text;
}

template <class A, class B> void to(Out &, const std::pair<A, B> &);
template <class... T> void to(Out &, const std::tuple<T...> &);
template <class T> void to(Out &, const std::optional<T> &);
template <class K, class V, class... R> void to(Out &, const std::map<K, V, R...> &);
template <class K, class V, class... R> void to(Out &, const std::unordered_map<K, V, R...> &);

template <class T> auto to(Out &out, const T &value) -> decltype(value.begin(), value.end(), void()) {
    const char *comma = "[";
    for (auto &&item : value) {
        out += comma;
        to(out, static_cast<const typename T::value_type &>(item));
        comma = ",";
    }
    out += *comma == '[' ? "[]" : "]";
}

template <class A, class B> void to(Out &out, const std::pair<A, B> &value) {
    out += "{\"t\":[", to(out, value.first), out += ',', to(out, value.second), out += "]}";
}

template <class... T> void to(Out &out, const std::tuple<T...> &value) {
    const char *comma = "{\"t\":[";
    std::apply([&](auto &...item) { ((out += comma, to(out, item), comma = ","), ...); }, value);
    out += sizeof...(T) ? "]}" : "{\"t\":[]}";
}

template <class T> void to(Out &out, const std::optional<T> &value) {
    if (value) to(out, *value);
    else out += "null";
}

template <class M> void to_object(Out &out, const M &value) {
    const char *comma = "";
    out += "{\"d\":[";
    for (auto &item : value) {
        out += comma, out += '[', to(out, item.first), out += ',', to(out, item.second), out += ']';
        comma = ",";
    }
    out += "]}";
}

template <class K, class V, class... R> void to(Out &out, const std::map<K, V, R...> &value) { to_object(out, value); }
template <class K, class V, class... R> void to(Out &out, const std::unordered_map<K, V, R...> &value) { to_object(out, value); }

}  // namespace sandbox_harness
#endif
