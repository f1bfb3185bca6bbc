// Writes episodes for movelist (docs/episode_format.md), as .jsonl. One file, C++17, nothing else needed.
//
//     movelist::Writer writer("games.jsonl", "my_game", {state_width});
//     writer.begin({{"policy", 120}, {"human"}});                       // who moves each seat; a policy's version
//     writer.step(seat, state, action_ids, chosen, reward, log_prob);   // once a decision, forced ones too
//     writer.end({1.0, -1.0});                                          // the final score of each seat
//
// `reward` is what this seat received since its own last step. An episode is written as one line when it ends, so a
// crash costs the running episode only. Not for several threads at once: one writer, and one file, for each.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace movelist {

// What a step may tell beside: numbers of each action in the order of its list, damage or cost, and what a critic may
// know while training, all hands. Both of one width in a file; leave out what you have none of.
struct Further {
    std::vector<std::vector<float>> action_features;
    std::vector<float> critic_state;
};

struct Player {
    std::string controller;            // "policy", "human" or "other"
    std::int64_t policy_version = -1;  // the number of the policy file; -1 for none
};

class Writer {
   public:
    static constexpr double kNoLogProb = std::numeric_limits<double>::infinity();

    // Adds to the file if it is there. `state_dtype` is float32, float16 or uint8.
    Writer(const std::filesystem::path& path, std::string game, std::vector<int> state_shape,
           const std::string& state_dtype = "float32")
        : game_(std::move(game)) {
        width_ = 1;
        for (int size : state_shape) width_ *= static_cast<std::size_t>(size);
        const bool begun = std::filesystem::exists(path) && std::filesystem::file_size(path) > 0;
        file_.open(path, std::ios::binary | std::ios::app);
        if (!file_) throw std::runtime_error("movelist: cannot open " + path.string());
        if (begun) file_ << '\n';  // what a crash may have left half written ends here; a blank line does no harm
        std::string shape;
        for (int size : state_shape) shape += (shape.empty() ? "" : ",") + std::to_string(size);
        put_line("{\"format\":\"movelist/1\",\"state_shape\":[" + shape + "],\"state_dtype\":\"" + state_dtype + "\"");
    }

    // Starts an episode; one that was not ended is forgotten.
    void begin(const std::vector<Player>& players) {
        steps_.clear();
        players_.clear();
        num_players_ = players.size();
        for (const Player& player : players) {
            players_ += (players_.empty() ? "{\"controller\":\"" : ",{\"controller\":\"") + player.controller + "\"";
            if (player.policy_version >= 0) players_ += ",\"policy_version\":" + std::to_string(player.policy_version);
            players_ += "}";
        }
    }

    // One decision. Ids may use all 64 bits and are distinct; `chosen` is an index into them.
    void step(int player, const std::vector<float>& state, const std::vector<std::uint64_t>& actions, int chosen,
              double reward, double log_prob = kNoLogProb, const Further& further = {}) {
        require(player >= 0 && static_cast<std::size_t>(player) < num_players_, "no such player");
        require(state.size() == width_, "the state has another width");
        require(chosen >= 0 && static_cast<std::size_t>(chosen) < actions.size(), "chosen is outside the list");
        std::string out = steps_.empty() ? "{\"player\":" : ",{\"player\":";
        out += std::to_string(player) + ",\"state\":[";
        put_numbers(out, state);
        out += "],\"actions\":[";
        for (std::size_t i = 0; i < actions.size(); ++i) out += (i ? "," : "") + std::to_string(actions[i]);
        out += "],\"chosen\":" + std::to_string(chosen) + ",\"reward\":";
        put_number(out, reward);
        if (log_prob != kNoLogProb) {
            out += ",\"log_prob\":";
            put_number(out, log_prob);
        }
        if (!further.critic_state.empty()) {
            out += ",\"critic_state\":[";
            put_numbers(out, further.critic_state);
            out += "]";
        }
        if (!further.action_features.empty()) {
            require(further.action_features.size() == actions.size(), "there is not one row of features for each action");
            out += ",\"action_features\":";
            put_rows(out, further.action_features);
        }
        steps_ += out + "}";  // only now: a step with a number that is none leaves nothing behind
    }

    // Ends the episode and writes it.
    void end(const std::vector<double>& returns) { finish(returns, "terminated", {}); }

    // Ends an episode that was cut off; `final_states` is what each seat sees there, `final_critic_state` what a critic
    // may know there, if the steps have a critic_state.
    void truncate(const std::vector<double>& returns, const std::vector<std::vector<float>>& final_states,
                  const std::vector<float>& final_critic_state = {}) {
        require(final_states.size() == num_players_, "there is not one final state for each seat");
        finish(returns, "truncated", final_states, final_critic_state);
    }

   private:
    void finish(const std::vector<double>& returns, const char* end,
                const std::vector<std::vector<float>>& final_states,
                const std::vector<float>& final_critic_state = {}) {
        require(returns.size() == num_players_, "there is not one return for each seat");
        std::string line = "{\"format\":\"movelist/1\",\"game\":\"" + escaped(game_) + "\",\"episode\":" +
                           std::to_string(episode_++) + ",\"players\":[" + players_ + "],\"steps\":[" + steps_ +
                           "],\"returns\":[";
        put_numbers(line, returns);
        line += std::string("],\"end\":\"") + end + "\"";
        if (!final_states.empty()) {
            for (const std::vector<float>& state : final_states) {
                require(state.size() == width_, "a final state has another width");
            }
            line += ",\"final_states\":";
            put_rows(line, final_states);
        }
        if (!final_critic_state.empty()) {
            line += ",\"final_critic_state\":[";
            put_numbers(line, final_critic_state);
            line += "]";
        }
        put_line(line);
        steps_.clear();
    }

    // `head` is a JSON object without its closing brace; the checksum covers it.
    void put_line(const std::string& head) {
        char hex[9];
        const std::uint32_t crc = crc32(head);
        for (int i = 0; i < 8; ++i) hex[i] = "0123456789abcdef"[(crc >> (28 - 4 * i)) & 15];
        hex[8] = 0;
        file_ << head << ",\"crc32\":\"" << hex << "\"}\n" << std::flush;
        if (!file_) throw std::runtime_error("movelist: the recording cannot be written (is the disk full?)");
    }

    // Without the locale, which would write a comma for the point in some countries.
    template <typename Number>
    static void put_number(std::string& out, Number value) {
        require(std::isfinite(value), "NaN and infinity are no numbers of JSON");
        char text[40];
        const auto written = std::to_chars(text, text + sizeof text, value);
        out.append(text, written.ptr);
    }

    template <typename Number>
    static void put_numbers(std::string& out, const std::vector<Number>& values) {
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (i) out += ",";
            put_number(out, values[i]);
        }
    }

    static void put_rows(std::string& out, const std::vector<std::vector<float>>& rows) {
        out += "[";
        for (std::size_t row = 0; row < rows.size(); ++row) {
            out += row ? ",[" : "[";
            put_numbers(out, rows[row]);
            out += "]";
        }
        out += "]";
    }

    static std::string escaped(const std::string& text) {
        std::string out;
        for (char letter : text) {
            if (letter == '"' || letter == '\\') out += '\\';
            require(static_cast<unsigned char>(letter) >= 32, "the game's name holds a control character");
            out += letter;
        }
        return out;
    }

    static std::uint32_t crc32(const std::string& bytes) {
        std::uint32_t crc = 0xFFFFFFFFu;
        for (unsigned char byte : bytes) {
            crc ^= byte;
            for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1u)));
        }
        return ~crc;
    }

    static void require(bool good, const char* what) {
        if (!good) throw std::invalid_argument(std::string("movelist: ") + what);
    }

    std::ofstream file_;
    std::string game_, players_, steps_;
    std::size_t width_ = 0, num_players_ = 0;
    std::int64_t episode_ = 0;
};

}  // namespace movelist
