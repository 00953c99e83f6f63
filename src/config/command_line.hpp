// The command line: the command, the deck and the options.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/deck.hpp"

namespace maestro::config {

struct CommandLine {
    Command command = Command::train;
    std::string deck;              ///< path; empty with `from`
    std::string from;              ///< plan: the run whose deck is planned; empty: `deck`
    std::vector<std::string> set;  ///< "KEY=VALUE", in order
    std::string resume = "none";   ///< auto, none or a path
    double max_hours = 0;          ///< 0: no limit
    bool dry_run = false;
    double memory = 0;        ///< train --dry-run: bytes of a rank of another machine; 0: none is requested
    bool json = false;        ///< train --dry-run: print a JSON object as the last line
    std::string checkpoint;   ///< evaluate, export: a checkpoint or a run
    std::string section, to;  ///< export: which section, and the folder to write
    bool adapter = false;     ///< export: the adapter of a section with LoRA alone
    bool exchange_images = false;
    std::int64_t show = 0;  ///< evaluate: samples that are shown with decoded answers
    std::string cluster;    ///< simulate, plan, train --dry-run
    std::string measured;   ///< simulate, plan: a run whose tasks correct the predicted times
    std::string policy, costs, replay, timeline;  ///< simulate
    double noise = 0;                             ///< simulate: relative standard deviation of task times
    std::uint64_t seed = 1;                       ///< simulate: of the noise
    std::int64_t step = 0;           ///< simulate: the step whose samples are used; 0: the default
    int least_ranks = 0, ranks = 0;  ///< plan: the range of ranks; 0: those of the deck
    std::vector<std::string> fixed;  ///< plan: the beginnings of keys that stay as the deck has them
    int top = 3;                     ///< plan: how many plans are printed
    bool robust = false;             ///< plan: prefer what loses least where rates are wrong
    std::string folder;              ///< import
    std::string out;                 ///< calibrate, import, plan
    bool answered = false;           ///< --help or --version: print `answer` and exit
    std::string answer;
};

/// Throws Error(usage, all_ranks) for a command line that is not valid, and Error(bad_deck) for a command
/// that is not built yet.
CommandLine parse_command_line(int argc, const char* const* argv);

}  // namespace maestro::config
