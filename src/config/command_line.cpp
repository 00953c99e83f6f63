#include "config/command_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <tuple>
#include <utility>

#include "base/error.hpp"

namespace maestro::config {

namespace {

namespace po = boost::program_options;

constexpr const char* kUsage =
    R"(maestro trains compound models: sections of ranks, each with its own model and layout.

  maestro train    DECK [--set KEY=VALUE]... [--resume auto|none|PATH] [--max-hours H]
                   [--dry-run [--cluster CLUSTER.toml | --memory BYTES] [--json]]
  maestro evaluate DECK --checkpoint PATH [--exchange-images] [--show N] [--set KEY=VALUE]...
  maestro plan     DECK | --from RUN --cluster CLUSTER.toml [--measured RUN] [--ranks N|A-B] [--fix KEY]...
                   [--top K] [--out DECK]
  maestro simulate DECK --cluster CLUSTER.toml [--measured RUN] | --replay RUN | --costs COSTS.csv [--policy P]
                   [--timeline OUT.csv]
  maestro calibrate --out CLUSTER.toml [--deck DECK [--set KEY=VALUE]...]
  maestro import   FOLDER [--out DECK]
  maestro export   CHECKPOINT [--section NAME] --to FOLDER [--adapter]

Training runs under mpirun or srun with as many ranks as the deck's sections need, for example
  mpirun -n 4 --oversubscribe build/cpu-release/maestro train inputs/vlm_glyphs.toml
Evaluation runs on any number of ranks; plan, simulate and a dry run as one process for a deck of any size.
Calibration measures the machine with as many ranks as will train on it.
`maestro COMMAND --help` lists the options of a command.)";

constexpr const char* kMeasured =
    "with --cluster: a run directory, whose task times correct the predicted ones, section by section and "
    "by length of sequences; tasks of other layouts and depths take the nearest correction "
    "(docs/planning.md)";
constexpr const char* kCommands = "train, evaluate, plan, simulate, calibrate, import, export";

[[noreturn]] void refuse(const std::string& what) {
    throw Error(ExitCode::usage, what + "; see maestro --help", Scope::all_ranks);
}

/// Returns the bytes that "80GiB", "80 GB", "80e9" or "85899345920" say.
double bytes_of(const std::string& text) {
    static const std::map<std::string, double> units = {{"", 1},
                                                        {"B", 1},
                                                        {"kB", 1e3},
                                                        {"KB", 1e3},
                                                        {"MB", 1e6},
                                                        {"GB", 1e9},
                                                        {"TB", 1e12},
                                                        {"KiB", 1024.0},
                                                        {"MiB", 1 << 20},
                                                        {"GiB", 1 << 30},
                                                        {"TiB", 1024.0 * (1 << 30)}};
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    const std::string unit = std::string(end).substr(std::min(std::strlen(end), std::strspn(end, " ")));
    const auto factor = units.find(unit);
    constexpr double kMost = 1e18;
    if (end == text.c_str() || factor == units.end() || !(number * factor->second >= 1) ||
        !(number * factor->second <= kMost))
        refuse(
            fmt::format("--memory {}: not a number of bytes; write the memory of a rank, such as 80GiB, "
                        "80GB, 80e9 or 85899345920",
                        text));
    return number * factor->second;
}

/// Returns the ends of "8" or "8-64".
std::pair<int, int> ranks_of(const std::string& text) {
    constexpr long kMost = 1 << 14;  // a search of more takes too long
    char* end = nullptr;
    const long first = std::strtol(text.c_str(), &end, 10);
    long last = first;
    if (*end == '-') last = std::strtol(end + 1, &end, 10);
    if (end == text.c_str() || *end != 0 || first < 1 || last < first || last > kMost)
        refuse(
            fmt::format("--ranks {}: write a number of ranks up to {}, such as 64, or a range, such as 8-64",
                        text, kMost));
    return {static_cast<int>(first), static_cast<int>(last)};
}

po::options_description options_of(Command command, CommandLine& line) {
    po::options_description options("options");
    auto add = options.add_options();
    add("help,h", "this text");
    if (command == Command::calibrate) {
        add("out", po::value(&line.out), "the cluster file to write");
        add("deck", po::value(&line.deck),
            "also run the layers of this deck's models, on the device that it names, and write by how much "
            "they take longer than predicted");
        add("set", po::value(&line.set)->composing(),
            "KEY=VALUE: override a key of the deck; may be repeated");
        return options;
    }
    if (command == Command::import_folder) {
        add("out", po::value(&line.out), "the deck to write; default: it is printed");
        return options;
    }
    if (command == Command::export_weights) {
        add("section", po::value(&line.section),
            "the section whose model is exported; default: the only one, or those of one model folder");
        add("to", po::value(&line.to),
            "the folder to write: config.json, safetensors and tokenizer, as other programs load them");
        add("adapter", po::bool_switch(&line.adapter),
            "of a section with LoRA, write the adapter alone, as Hugging Face PEFT loads it; default: the "
            "weights with the adapter added");
        return options;
    }
    add("set", po::value(&line.set)->composing(),
        "KEY=VALUE: override a key of the deck, e.g. train.steps=100 or section.vision.layout.dp=2; may be "
        "repeated");
    if (command == Command::train) {
        add("resume", po::value(&line.resume),
            "auto: resume from the newest complete checkpoint, or start from scratch if there is none; none "
            "(default); or the path of a checkpoint or run");
        add("max-hours", po::value(&line.max_hours),
            "stop with a checkpoint and exit code 75 after this many hours");
        add("dry-run", po::bool_switch(&line.dry_run),
            "check the deck, its files and the run directory, print ranks, memory and checkpoints, and do "
            "not "
            "train: on all ranks, or in one process for a deck of any size");
        add("cluster", po::value(&line.cluster),
            "with --dry-run: a TOML file with the machines that will train (inputs/clusters/), which need "
            "not "
            "be this one; the time of a step is predicted as well");
        add("memory", po::value<std::string>()->value_name("BYTES")->notifier([&](const std::string& text) {
            line.memory = bytes_of(text);
        }),
            "with --dry-run: the memory of a rank of another machine (of its GPU where run.device is cuda), "
            "such as 80GiB, 80e9 or 85899345920");
        add("json", po::bool_switch(&line.json),
            "with --dry-run: print a JSON object as the last line (docs/running_on_clusters.md)");
    } else if (command == Command::plan) {
        add("from", po::value(&line.from)->value_name("RUN"),
            "a run directory, instead of DECK: its deck with its values of --set, to resume the run on other "
            "ranks");
        add("cluster", po::value(&line.cluster),
            "TOML file with the machines that will train (inputs/clusters/), which need not be this one");
        add("measured", po::value(&line.measured)->value_name("RUN"), kMeasured);
        add("ranks", po::value<std::string>()->value_name("N|A-B")->notifier([&](const std::string& text) {
            std::tie(line.least_ranks, line.ranks) = ranks_of(text);
        }),
            "the most ranks of a plan; of a range, all numbers of ranks are compared by tokens per rank and "
            "hour; default: the number of the deck");
        add("fix", po::value(&line.fixed)->value_name("KEY")->composing(),
            "keep the deck's value of a key, or of all keys that begin so, such as section.vision.layout; "
            "may be repeated");
        add("top", po::value(&line.top)->value_name("K")->notifier([](int count) {
            if (count < 1 || count > 1000) refuse("--top takes a number of plans from 1 to 1000");
        }),
            "how many plans are printed; default 3");
        add("robust", po::bool_switch(&line.robust),
            "of the best plans, prefer the one that loses least where rates of the cluster file are wrong");
        add("out", po::value(&line.out), "the deck to write: this one, with the keys of the best plan");
    } else if (command == Command::simulate) {
        add("cluster", po::value(&line.cluster),
            "TOML file with the rates of the machines (inputs/clusters/): task times are predicted from the "
            "deck's models and samples");
        add("measured", po::value(&line.measured)->value_name("RUN"), kMeasured);
        add("replay", po::value(&line.replay),
            "a run, from whose tasks of one step the times are taken; policy, dp, window and micro_batch may "
            "differ from the run's; with --cluster its links and memory count too");
        add("costs", po::value(&line.costs),
            "CSV file of task times (sample, section, forward_s, backward_s); the deck then needs no model, "
            "data or training");
        add("step", po::value(&line.step)->notifier([](std::int64_t step) {
            if (step < 1) refuse("--step counts from 1");
        }),
            "the step whose samples are used; default 1, with --replay the last recorded one; not with "
            "--costs");
        add("policy", po::value(&line.policy),
            "wavefront, fifo, lpt, or one-size (every rank runs all sections in turn); default: the deck's");
        add("noise", po::value(&line.noise),
            "relative standard deviation of task times from the planned ones (0.2: 20%)");
        add("seed", po::value(&line.seed), "seed of the noise, default 1");
        add("timeline", po::value(&line.timeline),
            "CSV file to write, one line for every sample of every task");
    } else {
        add("checkpoint", po::value(&line.checkpoint),
            "a checkpoint, or a run, of which the newest complete checkpoint is used");
        add("exchange-images", po::bool_switch(&line.exchange_images),
            "replace every picture by one that shows something else");
        add("show", po::value(&line.show)->value_name("N")->notifier([](std::int64_t count) {
            if (count < 0) refuse("--show takes a number of samples, not negative");
        }),
            "print prompt, decoded answer and target of the first N samples that have a target");
    }
    return options;
}

void check_simulation(const CommandLine& line) {
    const bool models = !line.cluster.empty() || !line.replay.empty();
    if (models == !line.costs.empty())
        refuse(
            "simulate needs task times: either --cluster CLUSTER.toml, such as inputs/clusters/h100.toml, or "
            "--replay RUN, or --costs COSTS.csv");
    if (!line.measured.empty() && !line.replay.empty()) refuse("--measured and --replay exclude each other");
    if (!line.measured.empty() && line.cluster.empty()) refuse("--measured needs --cluster");
    const std::vector<std::string> policies{"wavefront", "fifo", "lpt", "one-size"};
    if (!line.policy.empty() && std::find(policies.begin(), policies.end(), line.policy) == policies.end())
        refuse(
            fmt::format("--policy {}: no such policy; policies: {}", line.policy, fmt::join(policies, ", ")));
    if (!(line.noise >= 0 && line.noise <= 2)) refuse("--noise must be a number from 0 to 2");
}

void check_dry_run(const CommandLine& line) {
    if (!line.cluster.empty() && line.memory > 0)
        refuse("--cluster and --memory exclude each other: a cluster file says the memory of a rank");
    if (line.dry_run) return;
    for (const auto& [requested, option] :
         {std::pair{!line.cluster.empty(), "--cluster"}, std::pair{line.memory > 0, "--memory"},
          std::pair{line.json, "--json"}})
        if (requested)
            refuse(fmt::format("{} is for --dry-run; training uses the machine that it runs on", option));
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv) {
    CommandLine line;
    if (argc < 2) refuse(fmt::format("no command; commands: {}", kCommands));
    const std::string word = argv[1];
    if (word == "--help" || word == "-h" || word == "help" || word == "--version") {
        line.answered = true;
        line.answer = word == "--version" ? "maestro " MAESTRO_VERSION : kUsage;
        return line;
    }
    const std::map<std::string, Command> commands = {
        {"train", Command::train},          {"evaluate", Command::evaluate},
        {"simulate", Command::simulate},    {"plan", Command::plan},
        {"calibrate", Command::calibrate},  {"import", Command::import_folder},
        {"export", Command::export_weights}};
    if (!commands.contains(word)) refuse(fmt::format("no command '{}'; commands: {}", word, kCommands));
    line.command = commands.at(word);

    const po::options_description visible = options_of(line.command, line);
    po::options_description all;
    std::vector<std::string> decks;
    all.add(visible).add_options()("operand", po::value(&decks));
    po::positional_options_description positional;
    positional.add("operand", -1);
    try {
        po::variables_map map;
        po::store(po::command_line_parser(argc - 1, argv + 1).options(all).positional(positional).run(), map);
        po::notify(map);
        if (map.contains("help")) {
            std::ostringstream text;
            const char* const argument = word == "calibrate" ? ""
                                         : word == "export"  ? " CHECKPOINT"
                                         : word == "import"  ? " FOLDER"
                                                             : " DECK";
            text << "maestro " << word << argument << "\n\n" << visible;
            line.answered = true;
            line.answer = text.str();
            return line;
        }
    } catch (const po::error& error) {
        refuse(error.what());
    }
    if (line.command == Command::calibrate) {
        if (!decks.empty()) refuse("calibrate takes a deck by --deck DECK");
        if (line.out.empty()) refuse("calibrate needs --out FILE");
        if (line.deck.empty() && !line.set.empty()) refuse("--set needs --deck DECK");
        return line;
    }
    if (line.command == Command::import_folder) {
        if (decks.size() != 1) refuse("import needs one model folder");
        line.folder = decks.front();
        return line;
    }
    if (line.command == Command::export_weights) {
        if (decks.size() != 1) refuse("export needs one checkpoint or run");
        if (line.to.empty()) refuse("export needs --to FOLDER");
        line.checkpoint = decks.front();
        return line;
    }
    if (line.command == Command::plan && decks.empty() == line.from.empty())
        refuse(decks.empty() ? "plan needs a deck, or --from RUN"
                             : fmt::format("plan takes either a deck or --from RUN, and there are {} and {}",
                                           decks.front(), line.from));
    if (decks.size() != 1 && line.from.empty())
        refuse(decks.empty() ? "no deck; give the path of a .toml file"
                             : fmt::format("one deck, not {}", decks.size()));
    if (line.from.empty()) line.deck = decks.front();
    if (line.command == Command::evaluate && line.checkpoint.empty())
        refuse("evaluate needs --checkpoint PATH");
    if (line.command == Command::simulate) check_simulation(line);
    if (line.command == Command::plan && line.cluster.empty())
        refuse("plan needs --cluster CLUSTER.toml, such as inputs/clusters/h100.toml");
    if (line.command == Command::train) check_dry_run(line);
    if (!(line.max_hours >= 0)) refuse("--max-hours must be a number of hours, not negative");
    return line;
}

}  // namespace maestro::config
