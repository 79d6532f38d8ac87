// Calls a C++ function with JSON arguments and writes its value. Job on descriptor 3 (JSON, then the nonce), result on 4.
// It stands above the program; lines below it hand the callee to `sandbox_harness::sandbox_choose`. Parameter types are deduced
// from the callee, never parsed from text; where it has overloads or default arguments, by the number of arguments.
// Linked with --wrap=main, so the program may have a main. System calls go by `syscall`, for a program's own variable
// `write` would take the place of the C library's function.
#ifndef SANDBOX_HARNESS_HPP
#define SANDBOX_HARNESS_HPP
#include <bits/stdc++.h>
#include <sys/syscall.h>

void sandbox_harness_call();

namespace sandbox_harness {

extern "C" long syscall(long, ...) noexcept;

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

// ---- JSON to parameters ---------------------------------------------------------------------------------------------

inline const Json &expect(const Json &json, Json::Kind kind, const char *what) {
    if (json.kind != kind) throw Misfit(std::string(what) + " wanted");
    return json;
}

inline void from(const Json &json, bool &out) { out = expect(json, Json::Truth, "a truth value").text == "true"; }
inline void from(const Json &json, std::string &out) { out = expect(json, Json::Text, "a text").text; }
inline void from(const Json &json, Json &out) { out = json; }

inline void from(const Json &json, char &out) {
    if (expect(json, Json::Text, "a character").text.size() != 1) throw Misfit("one character wanted");
    out = json.text[0];
}

template <class T> std::enable_if_t<std::is_floating_point_v<T>> from(const Json &json, T &out) {
    const std::string &text = expect(json, Json::Number, "a number").text;
    out = text == "NaN" ? std::nan("") : T(std::stold(text));
}

template <class T> std::enable_if_t<std::is_integral_v<T>> from(const Json &json, T &out) {
    const std::string &text = expect(json, Json::Number, "an integer").text;
    const char *end = text.data() + text.size();
    auto [stop, error] = std::from_chars(text.data(), end, out);
    if (error != std::errc() || stop != end) throw Misfit(text + " does not fit the integer parameter");
}

template <class A, class B> void from(const Json &, std::pair<A, B> &);
template <class... T> void from(const Json &, std::tuple<T...> &);
template <class T> void from(const Json &, std::optional<T> &);
template <class T, size_t N> void from(const Json &, std::array<T, N> &);
template <class K, class V, class... R> void from(const Json &, std::map<K, V, R...> &);
template <class K, class V, class... R> void from(const Json &, std::unordered_map<K, V, R...> &);

template <class T> auto from(const Json &json, T &out) -> decltype(out.insert(out.end(), std::declval<typename T::value_type>()), void()) {
    for (const Json &item : expect(json, Json::List, "a list").items) {
        typename T::value_type value{};
        from(item, value);
        out.insert(out.end(), std::move(value));
    }
}

inline void from(const Json &json, std::vector<bool> &out) {
    for (const Json &item : expect(json, Json::List, "a list").items) out.push_back(expect(item, Json::Truth, "a truth value").text == "true");
}

template <class A, class B> void from(const Json &json, std::pair<A, B> &out) {
    if (expect(json, Json::List, "a list of two").items.size() != 2) throw Misfit("a list of two wanted");
    from(json.items[0], out.first);
    from(json.items[1], out.second);
}

template <class... T> void from(const Json &json, std::tuple<T...> &out) {
    if (expect(json, Json::List, "a list").items.size() != sizeof...(T)) throw Misfit("a list of another length wanted");
    size_t next = 0;
    std::apply([&](auto &...item) { (from(json.items[next++], item), ...); }, out);
}

template <class T> void from(const Json &json, std::optional<T> &out) {
    if (json.kind != Json::Null) from(json, out.emplace());
}

template <class T, size_t N> void from(const Json &json, std::array<T, N> &out) {
    if (expect(json, Json::List, "a list").items.size() != N) throw Misfit("a list of another length wanted");
    for (size_t i = 0; i < N; i++) from(json.items[i], out[i]);
}

template <class M> void from_object(const Json &json, M &out) {
    expect(json, Json::Object, "an object");
    for (size_t i = 0; i < json.keys.size(); i++) {
        bool is_text = std::is_same_v<typename M::key_type, std::string> || std::is_same_v<typename M::key_type, char>;
        Json name;
        name.kind = is_text ? Json::Text : Json::Number;
        name.text = json.keys[i];
        typename M::key_type key{};
        from(name, key);
        from(json.items[i], out[key]);
    }
}

template <class K, class V, class... R> void from(const Json &json, std::map<K, V, R...> &out) { from_object(json, out); }
template <class K, class V, class... R> void from(const Json &json, std::unordered_map<K, V, R...> &out) { from_object(json, out); }

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

// ---- the call -------------------------------------------------------------------------------------------------------

struct Job {
    std::vector<Json> arguments;
    std::string nonce, stage = "program";
};

inline Job &job() { static Job the; return the; }

template <class F, class... A> void finish(F &&function, A &...argument) {
    job().stage = "call";
    Out out = "{\"ok\": true, \"values\": [";
    if constexpr (std::is_void_v<decltype(function(argument...))>) function(argument...), to(out, nullptr);
    else {
        std::decay_t<decltype(function(argument...))> value = function(argument...);
        to(out, value);
    }
    job().nonce += out + "]}";
}

// False where the number of arguments is another: there may be default ones.
template <class R, class... P, class F> bool invoke(F &&function) {
    if (job().arguments.size() != sizeof...(P)) return false;
    std::tuple<std::decay_t<P>...> arguments{};
    Json all;
    all.kind = Json::List;
    all.items = std::move(job().arguments);
    from(all, arguments);
    auto apply = [&](auto &...argument) -> R { return function(static_cast<P &&>(argument)...); };
    std::apply([&](auto &...argument) { finish(apply, argument...); }, arguments);
    return true;
}

template <class R, class... P> bool sandbox_call(Job &, R (*function)(P...)) { return invoke<R, P...>(function); }
template <class C> C &sandbox_made() { static C object{}; return object; }
template <class R, class C, class... P> bool sandbox_call(Job &, R (C::*method)(P...)) {
    return invoke<R, P...>([&](auto &&...a) -> R { return (sandbox_made<C>().*method)(std::forward<decltype(a)>(a)...); });
}
template <class R, class C, class... P> bool sandbox_call(Job &, R (C::*method)(P...) const) {
    return invoke<R, P...>([&](auto &&...a) -> R { return (sandbox_made<C>().*method)(std::forward<decltype(a)>(a)...); });
}
template <class F, class R, class C, class... P> bool call_object(F &function, R (C::*)(P...) const) { return invoke<R, P...>(function); }
template <class F, class R, class C, class... P> bool call_object(F &function, R (C::*)(P...)) { return invoke<R, P...>(function); }
template <class F> auto sandbox_call(Job &, F function) -> decltype(&F::operator(), bool()) { return call_object(function, &F::operator()); }

// An argument that becomes whatever the parameter wants to be; without Floats, nothing with a fraction, for the C library
// has functions of that kind under many a name.
template <bool Floats> struct Any {
    const Json *json = nullptr;
    template <class T, class V = std::remove_cv_t<T>, class = std::enable_if_t<Floats || !std::is_floating_point_v<V>>,
              class = decltype(from(std::declval<const Json &>(), std::declval<V &>()))>
    operator T &() const {
        static std::deque<V> all;
        from(*json, all.emplace_back());
        return all.back();
    }
};

template <bool Floats, class A, size_t... I> bool apply_any(A &apply, std::index_sequence<I...>) {
    if constexpr (std::is_invocable_v<A &, decltype(Any<Floats>{job().arguments.data() + I}) &...>) {
        std::vector<Any<Floats>> all;
        for (const Json &argument : job().arguments) all.push_back({&argument});
        finish(apply, all[I]...);
        return true;
    } else return false;
}

template <class A, size_t... N> bool apply_count(A &apply, std::index_sequence<N...>) {
    size_t size = job().arguments.size();
    return ((size == N && (apply_any<true>(apply, std::make_index_sequence<N>{}) || apply_any<false>(apply, std::make_index_sequence<N>{}))) || ...);
}

// direct: calls the one callee that the name stands for; it cannot be invoked where there are several.
template <class D, class A> void sandbox_choose(D direct, A apply) {
    if constexpr (std::is_invocable_v<D, Job &>)
        if (direct(job())) return;
    if (!apply_count(apply, std::make_index_sequence<12>{}))
        throw Misfit("no function of that name takes " + std::to_string(job().arguments.size()) + " arguments of these types");
}

[[noreturn]] inline void end(int code) {
    for (;;) syscall(SYS_exit_group, code);
}

inline void answer(const std::string &frame) {
    for (size_t done = 0; done < frame.size();) {
        long size = syscall(SYS_write, 4, frame.data() + done, frame.size() - done);
        if (size <= 0) end(1);
        done += size;
    }
}

[[noreturn]] inline void complain(const char *kind, const std::string &text) {
    Out out = "{\"ok\": false, \"error\": ";
    to(out, text);
    answer(job().nonce + out + ", \"stage\": \"" + job().stage + "\", \"kind\": \"" + kind + "\"}");
    end(1);
}

inline void read_job() {
    std::string bytes(std::max(0l, syscall(SYS_lseek, 3, 0l, 2)), '\0');
    if (bytes.size() < 32 || syscall(SYS_pread64, 3, &bytes[0], bytes.size(), 0l) != (long)bytes.size()) end(1);
    job().nonce = bytes.substr(bytes.size() - 32);
    bytes.resize(bytes.size() - 32);
    Json request = Reader(bytes).read();
    for (size_t i = 0; i < request.keys.size(); i++)
        if (request.keys[i] == "args") job().arguments = std::move(request.items[i].items);
}

}  // namespace sandbox_harness

extern "C" int __wrap_main(int, char **) {
    using namespace sandbox_harness;
    try {
        read_job();
        sandbox_harness_call();
    } catch (const std::bad_alloc &error) {
        complain("memory", error.what());
    } catch (const std::exception &error) {
        complain("error", error.what());
    }
    std::fflush(stdout);
    answer(job().nonce);
    end(0);
}
#endif
