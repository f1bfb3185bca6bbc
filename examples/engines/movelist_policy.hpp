// Plays a policy that movelist trained: one header, C++17, nothing but the standard library.
//
//     std::string error;
//     std::optional<movelist::Policy> policy =
//         movelist::Policy::load("policy-12.safetensors", {"my_game", "float32[97]"}, &error);
//     if (!policy) { log(error); return; }
//     movelist::Choice choice = policy->choose(state.data(), state.size(), ids.data(), ids.size());
//     if (choice.index < 0) { log(policy->error()); return; }
//     play(ids[choice.index]);
//
// The file is written by `movelist export RUN --profile weights --out policy.safetensors`; docs/export.md describes it.
// Nothing here throws, except that memory may run out. A Policy is for one thread at a time: give each thread a copy,
// copies share the weights. Once a call has seen the longest list, later calls allocate nothing.
//
// The score of an action is w . relu(U h_state + V h_action); V h_action is the same as long as the weights are, so it is
// kept for ids that were seen before, in a table of fixed size.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace movelist {

// What a file has to be for; an empty text accepts any.
struct Expected {
    std::string game;
    std::string state_layout;  // what the numbers of a state mean: "float32[97]" unless the export named it
};

// What the file says about itself.
struct Info {
    std::string game, state_layout, action_encoder, movelist, settings_hash;
    std::uint64_t policy_version = 0;
    std::size_t state_size = 0, hidden_dim = 0, action_hidden_dim = 0;
    std::size_t num_actions = 0;   // rows of the table; 0 for bits
    std::size_t feature_size = 0;  // numbers that it looks at of each action beside its id; 0 for none
};

// How to choose.
struct Play {
    bool greedy = true;         // always the likeliest action; the rest is ignored then
    float temperature = 1.0f;   // above 1 plays weaker and more varied, below 1 closer to greedy
    int top_k = 0;              // draw from the k likeliest only; 0 draws from all
    std::uint64_t seed = 0;     // the same seed and turn draw the same action, here and in movelist
    std::uint64_t turn = 0;
};

// The chosen place in the list, and the logarithm of the probability with which it was drawn (greedy: the policy's own
// probability of it). An index of -1 says that nothing was chosen: see Policy::error.
struct Choice {
    int index = -1;
    float log_prob = 0.0f;
};

namespace detail {

constexpr std::size_t kKeptActions = 1024;       // halves of scores that are kept; a power of two
constexpr std::size_t kPlaces = 8;               // an id may lie in any of these places side by side
constexpr std::size_t kLargest = 1u << 24;       // no size in a file may be larger
constexpr std::size_t kChecksumBytes = 4;

using Floats = std::vector<float>;

// S: state_size, H: hidden_dim, W: action_hidden_dim. Matrices lie transposed, [in, out], so that one input adds a whole
// row: rows whose input is 0 are skipped, which is half of them after a relu, and compilers vectorise the addition
// without being allowed to reorder sums.
struct Weights {
    Info info;
    Floats state1, state1_bias, state2, state2_bias;  // [S, H], [H], [H, H], [H]
    Floats state_to_pair, state_to_pair_bias;         // [H, H], [H]
    Floats action1, action1_bias;                     // bits: [64, W], [W]; table: [num_actions, W], empty
    Floats action_to_pair, pair;                      // [W, H], [H]; the first is empty where ids do not enter
    Floats feature_to_pair;                           // [feature_size, H]
};

inline std::uint32_t crc32(const unsigned char* bytes, std::size_t size) {
    std::uint32_t table[256];
    for (std::uint32_t n = 0; n < 256; ++n) {
        std::uint32_t value = n;
        for (int bit = 0; bit < 8; ++bit) value = (value & 1u) ? 0xEDB88320u ^ (value >> 1) : value >> 1;
        table[n] = value;
    }
    std::uint32_t crc = 0xFFFFFFFFu;
    for (std::size_t i = 0; i < size; ++i) crc = table[(crc ^ bytes[i]) & 0xFFu] ^ (crc >> 8);
    return crc ^ 0xFFFFFFFFu;
}

inline std::uint64_t mix(std::uint64_t x) {  // SplitMix64's finaliser
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15ull;

// Standard Gumbel noise for (seed, turn, place in the list), as movelist draws it.
inline float gumbel(std::uint64_t seed, std::uint64_t turn, std::size_t place) {
    const std::uint64_t key = mix(mix(seed) + (turn + 1) * kGolden);
    const std::uint64_t bits = mix(key + (static_cast<std::uint64_t>(place) + 1) * kGolden);
    // 52 bits: with 53 the largest number would round to 1, whose noise is infinite.
    const double unit = (static_cast<double>(bits >> 12) + 0.5) * (1.0 / 4503599627370496.0);
    return static_cast<float>(-std::log(-std::log(unit)));
}

struct Tensor {
    std::string dtype;
    std::vector<std::size_t> shape;
    std::size_t begin = 0, end = 0;  // bytes in the data
};

// Reads the header of a safetensors file: {"__metadata__": {text: text}, name: {"dtype", "shape", "data_offsets"}}.
class Header {
public:
    std::map<std::string, std::string> metadata;
    std::map<std::string, Tensor> tensors;

    bool read(std::string_view text) {
        text_ = text;
        place_ = 0;
        if (!object([this](const std::string& key) { return entry(key); })) return false;
        skip_space();
        return place_ == text_.size();
    }

private:
    std::string_view text_;
    std::size_t place_ = 0;

    bool entry(const std::string& name) {
        if (name == "__metadata__") {
            return object([this](const std::string& key) { return string(&metadata[key]); });
        }
        Tensor tensor;
        std::vector<std::size_t> offsets;
        const bool good = object([&](const std::string& key) {
            if (key == "dtype") return string(&tensor.dtype);
            if (key == "shape") return numbers(&tensor.shape);
            if (key == "data_offsets") return numbers(&offsets);
            return false;
        });
        if (!good || offsets.size() != 2 || offsets[0] > offsets[1]) return false;
        tensor.begin = offsets[0];
        tensor.end = offsets[1];
        tensors[name] = std::move(tensor);
        return true;
    }

    void skip_space() {
        while (place_ < text_.size() && std::strchr(" \t\r\n", text_[place_]) && text_[place_]) ++place_;
    }

    bool take(char wanted) {
        skip_space();
        if (place_ >= text_.size() || text_[place_] != wanted) return false;
        ++place_;
        return true;
    }

    template <class Entry>
    bool object(Entry read_entry) {
        if (!take('{')) return false;
        if (take('}')) return true;
        do {
            std::string key;
            if (!string(&key) || !take(':') || !read_entry(key)) return false;
        } while (take(','));
        return take('}');
    }

    bool numbers(std::vector<std::size_t>* out) {
        out->clear();
        if (!take('[')) return false;
        if (take(']')) return true;
        do {
            skip_space();
            const std::size_t first = place_;
            std::size_t value = 0;
            while (place_ < text_.size() && text_[place_] >= '0' && text_[place_] <= '9') {
                if (value > (std::numeric_limits<std::size_t>::max() - 9) / 10) return false;
                value = value * 10 + static_cast<std::size_t>(text_[place_++] - '0');
            }
            if (place_ == first || out->size() == 8) return false;
            out->push_back(value);
        } while (take(','));
        return take(']');
    }

    bool string(std::string* out) {
        out->clear();
        if (!take('"')) return false;
        while (place_ < text_.size()) {
            const char letter = text_[place_++];
            if (letter == '"') return true;
            if (letter != '\\') {
                out->push_back(letter);
            } else if (!escape(out)) {
                return false;
            }
        }
        return false;
    }

    bool escape(std::string* out) {
        if (place_ >= text_.size()) return false;
        const char letter = text_[place_++];
        if (letter == 'u') {
            unsigned code = 0, low = 0;
            if (!hex(&code)) return false;
            if (code >= 0xD800 && code < 0xDC00) {  // the first of two halves
                if (text_.substr(place_, 2) != "\\u") return false;
                place_ += 2;
                if (!hex(&low) || low < 0xDC00 || low > 0xDFFF) return false;
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
            }
            utf8(code, out);
            return true;
        }
        static constexpr char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
        const char* found = letter ? std::strchr(from, letter) : nullptr;
        if (!found) return false;
        out->push_back(to[found - from]);
        return true;
    }

    bool hex(unsigned* code) {
        for (int digit = 0; digit < 4; ++digit) {
            if (place_ >= text_.size()) return false;
            const char letter = text_[place_++];
            const char* found = letter ? std::strchr("0123456789abcdef0123456789ABCDEF", letter) : nullptr;
            if (!found) return false;
            *code = *code * 16 + static_cast<unsigned>((found - "0123456789abcdef0123456789ABCDEF") % 16);
        }
        return true;
    }

    static void utf8(unsigned code, std::string* out) {
        if (code < 0x80) {
            out->push_back(static_cast<char>(code));
        } else if (code < 0x800) {
            out->push_back(static_cast<char>(0xC0 | (code >> 6)));
            out->push_back(static_cast<char>(0x80 | (code & 0x3F)));
        } else {
            if (code < 0x10000) {
                out->push_back(static_cast<char>(0xE0 | (code >> 12)));
            } else {
                out->push_back(static_cast<char>(0xF0 | (code >> 18)));
                out->push_back(static_cast<char>(0x80 | ((code >> 12) & 0x3F)));
            }
            out->push_back(static_cast<char>(0x80 | ((code >> 6) & 0x3F)));
            out->push_back(static_cast<char>(0x80 | (code & 0x3F)));
        }
    }
};

// Reads a whole file from memory. Every size is checked before it is used.
class Reader {
public:
    Reader(const unsigned char* bytes, std::size_t size) : bytes_(bytes), size_(size) {}

    std::shared_ptr<const Weights> read(const Expected& expected, std::string* error) {
        auto weights = std::make_shared<Weights>();
        if (!read_header() || !read_info(&weights->info) || !check(expected, weights->info) || !read_weights(*weights)) {
            if (error) *error = error_;
            return nullptr;
        }
        return weights;
    }

private:
    const unsigned char* bytes_;
    std::size_t size_;
    std::size_t data_begin_ = 0, data_size_ = 0;
    Header header_;
    std::string error_;

    bool fail(std::string what) {
        error_ = std::move(what);
        return false;
    }

    bool read_header() {
        if (size_ < 8 + 2 + kChecksumBytes) {
            return fail("the policy file is too short: " + std::to_string(size_) + " bytes. Copy it again.");
        }
        const unsigned char* last = bytes_ + size_ - kChecksumBytes;
        const std::uint32_t stored = last[0] | (std::uint32_t{last[1]} << 8) | (std::uint32_t{last[2]} << 16) |
                                     (std::uint32_t{last[3]} << 24);
        if (crc32(bytes_, size_ - kChecksumBytes) != stored) {
            return fail("the policy file is damaged, or no weights file of movelist: its checksum differs. Copy it again.");
        }
        std::uint64_t length = 0;
        for (int i = 7; i >= 0; --i) length = (length << 8) | bytes_[i];
        if (length > size_ - 8) return fail("the policy file is damaged: its header is longer than the file.");
        data_begin_ = 8 + static_cast<std::size_t>(length);
        data_size_ = size_ - data_begin_;
        if (!header_.read({reinterpret_cast<const char*>(bytes_) + 8, static_cast<std::size_t>(length)})) {
            return fail("the policy file is damaged: its header cannot be read.");
        }
        std::size_t end = 0;
        for (const auto& entry : header_.tensors) end = std::max(end, entry.second.end);
        if (end != data_size_) return fail("the policy file is damaged: its tensors do not fill it.");
        return true;
    }

    std::string text(const char* key) const {
        const auto found = header_.metadata.find(key);
        return found == header_.metadata.end() ? std::string() : found->second;
    }

    bool number(const char* key, std::uint64_t largest, std::uint64_t* out) {
        const std::string digits = text(key);
        *out = 0;
        if (digits.empty() || digits.size() > 18) return fail(std::string("the policy file has no proper ") + key + ".");
        for (const char digit : digits) {
            if (digit < '0' || digit > '9') return fail(std::string("the policy file has no proper ") + key + ".");
            *out = *out * 10 + static_cast<std::uint64_t>(digit - '0');
        }
        if (*out > largest) return fail(std::string("the policy file has no proper ") + key + ".");
        return true;
    }

    bool read_info(Info* info) {
        const bool with_features = text("format") == "movelist-weights/2";
        if (!with_features && text("format") != "movelist-weights/1") {
            return fail("this is no weights file of movelist: format '" + text("format") +
                        "', expected 'movelist-weights/1' or 2. Export with --profile weights.");
        }
        std::uint64_t state_size = 0, hidden_dim = 0, action_hidden_dim = 0, num_actions = 0, feature_size = 0;
        if (!number("policy_version", std::numeric_limits<std::uint64_t>::max(), &info->policy_version) ||
            !number("state_size", kLargest, &state_size) || !number("hidden_dim", kLargest, &hidden_dim) ||
            !number("action_hidden_dim", kLargest, &action_hidden_dim) ||
            !number("num_actions", kLargest, &num_actions) ||
            (with_features && !number("feature_size", kLargest, &feature_size))) {
            return false;
        }
        info->feature_size = static_cast<std::size_t>(feature_size);
        info->state_size = static_cast<std::size_t>(state_size);
        info->hidden_dim = static_cast<std::size_t>(hidden_dim);
        info->action_hidden_dim = static_cast<std::size_t>(action_hidden_dim);
        info->num_actions = static_cast<std::size_t>(num_actions);
        info->game = text("game");
        info->state_layout = text("state_layout");
        info->action_encoder = text("action_encoder");
        info->movelist = text("movelist");
        info->settings_hash = text("settings_hash");
        const bool bits = info->action_encoder == "bits" && num_actions == 0;
        const bool table = info->action_encoder == "table" && num_actions > 0;
        const bool features = info->action_encoder == "features" && num_actions == 0;
        if (with_features != (feature_size > 0) || (features && !with_features)) {
            return fail("the policy file has no proper feature_size.");
        }
        if ((!bits && !table && !features) || state_size == 0 || hidden_dim == 0 || action_hidden_dim == 0) {
            return fail("the policy file has no proper sizes for action_encoder '" + info->action_encoder + "'.");
        }
        return true;
    }

    bool check(const Expected& expected, const Info& info) {
        if (!expected.game.empty() && expected.game != info.game) {
            return fail("the policy file is of another game: got '" + info.game + "', expected '" + expected.game + "'.");
        }
        if (!expected.state_layout.empty() && expected.state_layout != info.state_layout) {
            return fail("the policy file is of another state layout: got '" + info.state_layout + "', expected '" +
                        expected.state_layout + "'. Export a policy that was trained on this layout.");
        }
        return true;
    }

    bool read_weights(Weights& w) {
        const std::size_t S = w.info.state_size, H = w.info.hidden_dim, W = w.info.action_hidden_dim;
        const std::size_t F = w.info.feature_size;
        const bool table = w.info.action_encoder == "table", no_ids = w.info.action_encoder == "features";
        return matrix("state1.weight", H, S, &w.state1) && vector("state1.bias", H, &w.state1_bias) &&
               matrix("state2.weight", H, H, &w.state2) && vector("state2.bias", H, &w.state2_bias) &&
               matrix("state_to_pair.weight", H, H, &w.state_to_pair) &&
               vector("state_to_pair.bias", H, &w.state_to_pair_bias) &&
               (no_ids || ((table ? plain("action_table", {w.info.num_actions, W}, &w.action1)
                                  : matrix("action1.weight", W, 64, &w.action1) &&
                                        vector("action1.bias", W, &w.action1_bias)) &&
                           matrix("action_to_pair.weight", H, W, &w.action_to_pair))) &&
               (F == 0 || matrix("feature_to_pair.weight", H, F, &w.feature_to_pair)) &&
               vector("pair.weight", H, &w.pair);
    }

    bool vector(const char* name, std::size_t size, Floats* out) { return plain(name, {size}, out); }

    bool plain(const char* name, std::vector<std::size_t> shape, Floats* out) {
        const auto found = header_.tensors.find(name);
        if (found == header_.tensors.end()) return fail(std::string("the policy file lacks ") + name + ".");
        const Tensor& tensor = found->second;
        std::size_t count = 1;
        for (const std::size_t size : shape) count *= size;  // each is at most 2^24: no overflow in 64 bits
        if (tensor.dtype != "F32" || tensor.shape != shape || tensor.end > data_size_ ||
            (tensor.end - tensor.begin) / sizeof(float) != count || (tensor.end - tensor.begin) % sizeof(float) != 0) {
            return fail(std::string("the policy file has a wrong size for ") + name + ".");
        }
        out->resize(count);
        std::memcpy(out->data(), bytes_ + data_begin_ + tensor.begin, count * sizeof(float));
        for (const float value : *out) {
            if (!std::isfinite(value)) return fail(std::string("the policy file holds NaN or infinity in ") + name + ".");
        }
        return true;
    }

    // [rows, columns] in the file, transposed here.
    bool matrix(const char* name, std::size_t rows, std::size_t columns, Floats* out) {
        Floats straight;
        if (!plain(name, {rows, columns}, &straight)) return false;
        out->resize(straight.size());
        for (std::size_t r = 0; r < rows; ++r) {
            for (std::size_t c = 0; c < columns; ++c) (*out)[c * rows + r] = straight[r * columns + c];
        }
        return true;
    }
};

}  // namespace detail

class Policy {
public:
    // Reads a file. Returns nothing and says why in `error` if it cannot be read, is damaged, or is of another game or
    // state layout. On Windows, for paths that are not ASCII, pass std::filesystem::u8path(text).
    static std::optional<Policy> load(const std::filesystem::path& path, const Expected& expected = {},
                                      std::string* error = nullptr) {
        std::error_code none;
        std::ifstream file;
        // A folder can be opened on Linux, and its size is any number.
        if (!std::filesystem::is_directory(path, none)) file.open(path, std::ios::binary | std::ios::ate);
        const std::streamoff size = file.is_open() ? static_cast<std::streamoff>(file.tellg()) : -1;
        if (size < 0) {
            if (error) *error = "the policy file cannot be opened: " + path.u8string();
            return std::nullopt;
        }
        std::vector<char> bytes(static_cast<std::size_t>(size));
        file.seekg(0);
        if (size > 0 && !file.read(bytes.data(), size)) {
            if (error) *error = "the policy file cannot be read: " + path.u8string();
            return std::nullopt;
        }
        std::optional<Policy> policy = from_memory(bytes.data(), bytes.size(), expected, error);
        if (!policy && error) *error += " (" + path.u8string() + ")";
        return policy;
    }

    // The same from bytes that the engine has loaded.
    static std::optional<Policy> from_memory(const void* bytes, std::size_t size, const Expected& expected = {},
                                             std::string* error = nullptr) {
        detail::Reader reader(static_cast<const unsigned char*>(bytes), size);
        std::shared_ptr<const detail::Weights> weights = reader.read(expected, error);
        if (!weights) return std::nullopt;
        return Policy(std::move(weights));
    }

    const Info& info() const { return weights_->info; }

    // Why the last call chose nothing; empty if it chose.
    const std::string& error() const { return error_; }

    // Of the last call, in the order of its list: raw scores, and the logarithms of the policy's probabilities.
    const std::vector<float>& logits() const { return logits_; }
    const std::vector<float>& log_probs() const { return log_probs_; }

    // Chooses one of the legal actions.
    //   state: state_size numbers, as in training, finite.
    //   ids: count action ids, count >= 1; the bit pattern is what matters, so a std::uint64_t is cast. An id that is
    //     there k times is one action: it is as likely as if it were there once, and each copy has 1/k of that.
    Choice choose(const float* state, std::size_t state_size, const std::int64_t* ids, std::size_t count,
                  const Play& play = {}) {
        return choose(state, state_size, ids, count, nullptr, 0, play);
    }

    // The same for a policy that looks at action features.
    //   features: feature_size numbers for each action, one action's behind the other's, in the order of ids.
    Choice choose(const float* state, std::size_t state_size, const std::int64_t* ids, std::size_t count,
                  const float* features, std::size_t feature_size, const Play& play = {}) {
        error_.clear();
        if (!good(state, state_size, ids, count, play) || !good_features(features, feature_size, count)) return {};
        encode_state(state);
        logits_.resize(count);
        for (std::size_t a = 0; a < count; ++a) {
            const float* half = weights_->action_to_pair.empty() ? nothing_.data() : half_of(ids[a]);
            logits_[a] = score(feature_size ? with_features(half, features + a * feature_size) : half);
        }
        find_copies(ids, count);
        if (!log_softmax(logits_, 1.0f, log_probs_)) {
            error_ = "the policy's scores are not finite: is the state?";
            return {};
        }
        return play.greedy ? likeliest() : draw(play);
    }

private:
    explicit Policy(std::shared_ptr<const detail::Weights> weights) : weights_(std::move(weights)) {
        const std::size_t H = weights_->info.hidden_dim;
        first_.resize(H);
        second_.resize(H);
        state_half_.resize(H);
        action_.resize(weights_->info.action_hidden_dim);
        featured_.resize(H);
        nothing_.resize(H, 0.0f);
        kept_id_.resize(detail::kKeptActions);
        kept_.resize(detail::kKeptActions, 0);
        kept_half_.resize(detail::kKeptActions * H);
        oldest_.resize(detail::kKeptActions / detail::kPlaces, 0);
        const Info& info = weights_->info;
        used_.reserve(std::max({info.state_size, H, info.action_hidden_dim, info.feature_size}));
        logits_.reserve(512);
        log_probs_.reserve(512);
        drawn_from_.reserve(512);
        noisy_.reserve(512);
        log_copies_.reserve(512);
        order_.reserve(512);
        first_place_.reserve(512);
    }

    std::shared_ptr<const detail::Weights> weights_;
    std::string error_;
    std::vector<float> first_, second_, state_half_, action_, featured_, nothing_, logits_, log_probs_, drawn_from_, noisy_;
    std::vector<float> log_copies_;         // for each entry, the logarithm of how often its id is in the list
    std::vector<std::size_t> first_place_;  // and where it is first
    std::vector<std::size_t> used_, order_;
    std::vector<std::int64_t> kept_id_;
    std::vector<char> kept_;
    std::vector<unsigned char> oldest_;  // in each group of kPlaces, the place that goes next
    std::vector<float> kept_half_;  // [kKeptActions, H]

    bool good(const float* state, std::size_t state_size, const std::int64_t* ids, std::size_t count, const Play& play) {
        const Info& info = weights_->info;
        if (state_size != info.state_size) {
            error_ = "the state has the wrong width: got " + std::to_string(state_size) + ", expected " +
                     std::to_string(info.state_size) + ".";
        } else if (count == 0 || count > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
            error_ = "there is no legal action: got " + std::to_string(count) + ", expected at least 1.";
        } else if (!play.greedy && !(play.temperature > 0.0f && std::isfinite(play.temperature))) {
            error_ = "the temperature has to be above 0; greedy = true always plays the likeliest action.";
        } else if (!std::all_of(state, state + state_size, [](float value) { return std::isfinite(value); })) {
            error_ = "the state holds NaN or infinity.";
        } else if (info.num_actions > 0) {
            for (std::size_t a = 0; a < count && error_.empty(); ++a) {
                if (ids[a] < 0 || static_cast<std::uint64_t>(ids[a]) >= info.num_actions) {
                    error_ = "an action id has no row in the table: got " + std::to_string(ids[a]) + ", expected 0 to " +
                             std::to_string(info.num_actions - 1) + ".";
                }
            }
        }
        return error_.empty();
    }

    bool good_features(const float* features, std::size_t feature_size, std::size_t count) {
        if (feature_size != weights_->info.feature_size) {
            error_ = "the action features have the wrong width: got " + std::to_string(feature_size) + ", expected " +
                     std::to_string(weights_->info.feature_size) + " for each action.";
        } else if (!std::all_of(features, features + count * feature_size, [](float x) { return std::isfinite(x); })) {
            error_ = "the action features hold NaN or infinity.";
        }
        return error_.empty();
    }

    // An id's half and what is known of the action beside, [H]; valid until the next call.
    const float* with_features(const float* half, const float* features) {
        std::copy(half, half + featured_.size(), featured_.begin());
        add_product(features, weights_->info.feature_size, weights_->feature_to_pair, featured_.data());
        return featured_.data();
    }

    // out += in . matrix, where matrix is [in.size(), H]. Four rows at a time, so that `out` is loaded a quarter as often.
    void add_product(const float* in, std::size_t size, const detail::Floats& matrix, float* __restrict out) {
        const std::size_t H = weights_->info.hidden_dim;
        used_.clear();
        for (std::size_t i = 0; i < size; ++i) {
            if (in[i] != 0.0f) used_.push_back(i);
        }
        std::size_t n = 0;
        for (; n + 4 <= used_.size(); n += 4) {
            const float* __restrict row0 = matrix.data() + used_[n] * H;
            const float* __restrict row1 = matrix.data() + used_[n + 1] * H;
            const float* __restrict row2 = matrix.data() + used_[n + 2] * H;
            const float* __restrict row3 = matrix.data() + used_[n + 3] * H;
            const float x0 = in[used_[n]], x1 = in[used_[n + 1]], x2 = in[used_[n + 2]], x3 = in[used_[n + 3]];
            for (std::size_t h = 0; h < H; ++h) out[h] += (x0 * row0[h] + x1 * row1[h]) + (x2 * row2[h] + x3 * row3[h]);
        }
        for (; n < used_.size(); ++n) {
            const float* __restrict row = matrix.data() + used_[n] * H;
            const float x = in[used_[n]];
            for (std::size_t h = 0; h < H; ++h) out[h] += x * row[h];
        }
    }

    // Written so that NaN stays NaN, and choose() sees it.
    static float relu(float value) { return value < 0.0f ? 0.0f : value; }

    static void relu(std::vector<float>& values) {
        for (float& value : values) value = relu(value);
    }

    void encode_state(const float* state) {
        const detail::Weights& w = *weights_;
        std::copy(w.state1_bias.begin(), w.state1_bias.end(), first_.begin());
        add_product(state, w.info.state_size, w.state1, first_.data());
        relu(first_);
        std::copy(w.state2_bias.begin(), w.state2_bias.end(), second_.begin());
        add_product(first_.data(), first_.size(), w.state2, second_.data());
        relu(second_);
        std::copy(w.state_to_pair_bias.begin(), w.state_to_pair_bias.end(), state_half_.begin());
        add_product(second_.data(), second_.size(), w.state_to_pair, state_half_.data());
    }

    // V h_action of an id, [H]; valid until the next call, which may need its place.
    const float* half_of(std::int64_t id) {
        const detail::Weights& w = *weights_;
        const std::size_t H = w.info.hidden_dim, W = w.info.action_hidden_dim;
        const std::uint64_t bits = static_cast<std::uint64_t>(id);
        const std::size_t begin = static_cast<std::size_t>(detail::mix(bits)) & (detail::kKeptActions - detail::kPlaces);
        for (std::size_t place = begin; place < begin + detail::kPlaces; ++place) {
            if (kept_[place] && kept_id_[place] == id) return kept_half_.data() + place * H;
        }
        const std::size_t slot = begin + oldest_[begin / detail::kPlaces]++ % detail::kPlaces;
        float* half = kept_half_.data() + slot * H;
        if (w.info.num_actions > 0) {
            std::copy_n(w.action1.begin() + static_cast<std::ptrdiff_t>(bits * W), W, action_.begin());
        } else {
            std::copy(w.action1_bias.begin(), w.action1_bias.end(), action_.begin());
            for (std::size_t bit = 0; bit < 64; ++bit) {
                if (!((bits >> bit) & 1u)) continue;
                const float* row = w.action1.data() + bit * W;
                for (std::size_t h = 0; h < W; ++h) action_[h] += row[h];
            }
        }
        relu(action_);
        std::fill_n(half, H, 0.0f);
        add_product(action_.data(), W, w.action_to_pair, half);
        kept_[slot] = 1;
        kept_id_[slot] = id;
        return half;
    }

    float score(const float* __restrict half) const {
        const std::size_t H = weights_->info.hidden_dim;
        const float* __restrict state = state_half_.data();
        const float* __restrict pair = weights_->pair.data();
        float sum[8] = {};  // eight sums side by side, so that the compiler may use its vector registers
        std::size_t h = 0;
        for (; h + 8 <= H; h += 8) {
            for (std::size_t k = 0; k < 8; ++k) {
                sum[k] += pair[h + k] * relu(state[h + k] + half[h + k]);
            }
        }
        float total = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
        for (; h < H; ++h) {
            total += pair[h] * relu(state[h] + half[h]);
        }
        return total;
    }

    void find_copies(const std::int64_t* ids, std::size_t count) {
        log_copies_.assign(count, 0.0f);
        first_place_.resize(count);
        for (std::size_t a = 0; a < count; ++a) first_place_[a] = a;
        if (std::adjacent_find(ids, ids + count, std::greater_equal<std::int64_t>()) == ids + count) return;  // ascending
        order_ = first_place_;
        std::sort(order_.begin(), order_.end(), [ids](std::size_t a, std::size_t b) {
            return ids[a] < ids[b] || (ids[a] == ids[b] && a < b);
        });
        for (std::size_t begin = 0, end = 0; begin < count; begin = end) {
            while (end < count && ids[order_[end]] == ids[order_[begin]]) ++end;
            for (std::size_t n = begin; n < end && end - begin > 1; ++n) {
                first_place_[order_[n]] = order_[begin];
                log_copies_[order_[n]] = std::log(static_cast<float>(end - begin));
            }
        }
    }

    // False if a score is not finite. Scores of -infinity, which top_k makes, get -infinity.
    bool log_softmax(const std::vector<float>& scores, float temperature, std::vector<float>& out) const {
        out.resize(scores.size());
        double largest = -std::numeric_limits<double>::infinity(), sum = 0.0;
        for (const float value : scores) {
            if (std::isnan(value) || value == std::numeric_limits<float>::infinity()) return false;
            largest = std::max(largest, static_cast<double>(value));
        }
        if (std::isinf(largest)) return false;
        for (std::size_t a = 0; a < scores.size(); ++a) {
            if (first_place_[a] == a) sum += std::exp((scores[a] - largest) / temperature);
        }
        const double log_sum = std::log(sum);
        for (std::size_t a = 0; a < scores.size(); ++a) {
            out[a] = static_cast<float>((scores[a] - largest) / temperature - log_sum - log_copies_[a]);
        }
        return true;
    }

    // Of the actions with all their copies.
    Choice likeliest() {
        noisy_ = log_probs_;
        for (std::size_t a = 0; a < noisy_.size(); ++a) noisy_[a] += log_copies_[a];
        return best(noisy_, log_probs_);  // of equal ones the first, as copies of one action are
    }

    static Choice best(const std::vector<float>& value, const std::vector<float>& log_prob) {
        const std::size_t index = static_cast<std::size_t>(std::max_element(value.begin(), value.end()) - value.begin());
        return {static_cast<int>(index), log_prob[index]};
    }

    // Gumbel-max: the largest of log-probability plus noise falls on each action with its probability.
    Choice draw(const Play& play) {
        drawn_from_ = logits_;
        const std::size_t count = logits_.size();
        order_.clear();  // each action once, where it is first
        for (std::size_t a = 0; a < count; ++a) {
            if (first_place_[a] == a) order_.push_back(a);
        }
        if (play.top_k > 0 && static_cast<std::size_t>(play.top_k) < order_.size()) {
            const auto likelier = [this](std::size_t a, std::size_t b) {
                return logits_[a] > logits_[b] || (logits_[a] == logits_[b] && a < b);
            };
            std::nth_element(order_.begin(), order_.begin() + play.top_k, order_.end(), likelier);
            for (std::size_t n = static_cast<std::size_t>(play.top_k); n < order_.size(); ++n) {
                drawn_from_[order_[n]] = -std::numeric_limits<float>::infinity();
            }
            for (std::size_t a = 0; a < count; ++a) drawn_from_[a] = drawn_from_[first_place_[a]];
        }
        noisy_.resize(count);
        log_softmax(drawn_from_, play.temperature, noisy_);
        std::swap(drawn_from_, noisy_);  // drawn_from_ holds log-probabilities now
        for (std::size_t a = 0; a < count; ++a) noisy_[a] = drawn_from_[a] + detail::gumbel(play.seed, play.turn, a);
        return best(noisy_, drawn_from_);
    }
};

}  // namespace movelist
