#include "train/evaluation/shown_samples.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "comm/agree.hpp"
#include "train/setup/answer_ends.hpp"
#include "workload/decoding.hpp"

namespace maestro::train {

namespace {

/// Cuts a long text in its middle.
std::string shortened(const std::string& text) {
    constexpr std::size_t kFirst = 900, kLast = 600, kNote = 100;
    std::vector<std::size_t> begins;  // of characters
    for (std::size_t i = 0; i < text.size(); ++i)
        if ((text[i] & 0xC0) != 0x80) begins.push_back(i);
    if (begins.size() <= kFirst + kLast + kNote) return text;
    const std::size_t cut = begins.size() - kFirst - kLast;
    return fmt::format("{}\n[{} characters are not shown]\n{}", text.substr(0, begins[kFirst]), cut,
                       text.substr(begins[begins.size() - kLast]));
}

/// Text in a column behind a label, line by line.
std::string in_column(const char* label, const std::string& text) {
    std::string block;
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find('\n', begin), text.size());
        block += fmt::format("\n  {:6} | {}", begin == 0 ? label : "", text.substr(begin, end - begin));
        begin = end + 1;
    }
    return block;
}

}  // namespace

void check_decoding(const RunContext& context, bool one_rank) {
    const auto refuse = [](const std::string& what) {
        throw Error(ExitCode::bad_deck, what, Scope::all_ranks);
    };
    if (context.deck.run.device == "emulated")
        refuse("--show: an emulated device computes nothing; use run.device = \"cpu\" or \"cuda\"");
    const graph::SectionGraph& graph = context.scenario.graph;
    const graph::Section& section = graph.sections[workload::decoding_section(graph)];
    const graph::Layout& layout = section.layout;
    const bool whole = layout.stage_count() == 1 && layout.cp == 1 && !section.replicas_share_experts();
    if (one_rank || whole) return;
    std::string keys, values;
    for (const auto& [key, value] : {std::pair{"pp", layout.pp},
                                     {"chunks", layout.chunks},
                                     {"cp", layout.cp},
                                     {"ep", layout.ep},
                                     {"etp", layout.etp}}) {
        const bool of_experts = key[0] == 'e';
        if (value == 1 || (of_experts && !section.replicas_share_experts())) continue;
        keys += fmt::format("{}layout.{} = {}", keys.empty() ? "" : ", ", key, value);
        values += fmt::format(" --set section.{}.layout.{}=1", section.name, key);
    }
    refuse(fmt::format(
        "section.{}: {}: --show decodes with dp and tp alone; add{}, or evaluate on another number "
        "of ranks than {}, where each rank holds all sections whole",
        section.name, keys, values, graph.world));
}

ShownSamples::ShownSamples(const RunContext& context, const data::SampleFile& file,
                           std::vector<std::int64_t> samples)
    : file_(file), samples_(std::move(samples)), target_tokens_(samples_.size()), ends_(samples_.size()) {
    comm::agree(context.world, [&] {
        if (context.world.rank() == 0) read(context);
    });
    context.world.broadcast(std::span(target_tokens_));
    for (auto& each : ends_) context.world.broadcast(each);
}

void ShownSamples::read(const RunContext& context) {
    const int section = workload::decoding_section(context.scenario.graph);
    const config::Section& of_deck = context.deck.sections[static_cast<std::size_t>(section)];
    section_ = of_deck.name;
    context.pulse.doing("the tokenizer of " + file_.path().string());
    try {
        detokenizer_ = detokenizer_of(file_, context.pulse);
    } catch (const Error& error) {
        if (error.code() != ExitCode::bad_data) throw;
        why_ids_ = error.what();
    }
    const std::vector<std::int32_t> of_folder =
        of_deck.from_folder ? ends_of_folder(of_deck.weights, context.pulse) : std::vector<std::int32_t>();
    for (std::size_t i = 0; i < samples_.size(); ++i) {
        data::Sample& sample = read_.emplace_back();
        file_.read(samples_[i], sample, data::SampleFields::text, context.pulse);
        const auto begin = sample.weights.begin() + answer_begin(i);
        const auto end = std::find(begin, sample.weights.end(), 0.0f);
        target_tokens_[i] = end - begin;
        const auto target = std::span(sample.tokens).subspan(begin - sample.weights.begin(), end - begin);
        ends_[i] = of_folder;
        // Without the tokenizer, a token that stands at the end alone counts as one that ends an answer.
        const auto last = detokenizer_ ? end_of(target, *detokenizer_)
                          : std::count(target.begin(), target.end(), target.back()) == 1
                              ? std::optional(target.back())
                              : std::nullopt;
        if (last) ends_[i].push_back(*last);
    }
}

std::int64_t ShownSamples::answer_begin(std::size_t i) const {
    const std::vector<float>& weights = read_[i].weights;
    return std::find_if(weights.begin(), weights.end(), [](float weight) { return weight != 0; }) -
           weights.begin();
}

std::string ShownSamples::text_of(std::span<const std::int32_t> tokens, const data::Sample& sample,
                                  std::size_t item) const {
    const Markers markers = file_.markers();
    std::string text;
    while (!tokens.empty()) {
        const auto marker = std::find_if(tokens.begin(), tokens.end(), [&](std::int32_t token) {
            return markers.kind_of(token).has_value();
        });
        const auto words = tokens.first(static_cast<std::size_t>(marker - tokens.begin()));
        text += detokenizer_ ? detokenizer_->text(words) : fmt::format("{}", fmt::join(words, " "));
        tokens = tokens.subspan(words.size());
        if (tokens.empty()) break;
        const char* const kind = word_of(*markers.kind_of(tokens.front()));
        tokens = tokens.subspan(1);
        if (item < sample.items.size()) {
            const Item& shown = sample.items[item++].item;
            text += fmt::format("[{} {} x {}]", kind, shown.width, shown.height);
        } else {
            text += fmt::format("[{}]", kind);  // only an answer has markers without items
        }
    }
    return tokens::escape_controls(text);
}

void ShownSamples::print(const std::vector<std::vector<std::int32_t>>& answers) const {
    if (!why_ids_.empty()) log::info("tokens are shown by their ids, because of {}", why_ids_);
    for (std::size_t i = 0; i < samples_.size(); ++i) {
        const data::Sample& sample = read_[i];
        const std::span<const std::int32_t> stored = sample.tokens;
        const auto begin = static_cast<std::size_t>(answer_begin(i));
        const auto target = stored.subspan(begin, static_cast<std::size_t>(target_tokens_[i]));
        const auto items =
            std::count_if(stored.begin(), stored.begin() + static_cast<std::ptrdiff_t>(begin),
                          [&](std::int32_t token) { return file_.markers().kind_of(token).has_value(); });
        const std::vector<std::int32_t>& answer = answers[i];
        const bool ended = std::find(ends_[i].begin(), ends_[i].end(), answer.back()) != ends_[i].end();
        std::string note = fmt::format("{} tokens", answer.size());
        if (!ended) note += ends_[i].empty() ? ", as many as its target has" : ", cut off there";
        if (std::equal(answer.begin(), answer.end(), target.begin(), target.end())) note = "the target";
        const auto none = sample.items.size();
        log::info("\nsample {} of {}: section {} answers with {}{}{}{}", samples_[i], file_.path().string(),
                  section_, note, in_column("prompt", shortened(text_of(stored.first(begin), sample, 0))),
                  in_column("answer", shortened(text_of(answer, sample, none))),
                  in_column("target", shortened(text_of(target, sample, static_cast<std::size_t>(items)))));
    }
    if (samples_.empty()) log::info("{}: no sample has a target to show", file_.path().string());
    log::info("");
}

}  // namespace maestro::train
