// What `maestro export` does with the LoRA adapters of a section: it adds them to the weights, or writes them
// as PEFT does.
#pragma once

#include <string>
#include <vector>

#include "base/pulse.hpp"
#include "base/shard.hpp"
#include "comm/communicator.hpp"
#include "io/checkpoint_reader.hpp"
#include "model/module.hpp"
#include "spec/lora.hpp"
#include "train/interchange/exported_parameter.hpp"
#include "train/setup/answer_ends.hpp"
#include "train/setup/interruption.hpp"

namespace maestro::train {

/// (alpha / rank) B A of one weight, from a checkpoint.
class AdapterDelta {
public:
    /// Reads A and B where the weight has an adapter. `parameter` has so many rows and columns.
    /// Error(bad_data, io_error).
    AdapterDelta(const io::SectionReader& stored, const model::ModelSpec& spec, const Lora& lora,
                 const std::string& parameter, const std::vector<std::int64_t>& shape);
    /// Adds the elements `block` of the whole weight to values[block.size()].
    void add_to(Range block, float* values) const;

private:
    /// Rows of the weight that have an adapter: those of one matrix.
    struct Matrix {
        Range rows;
        std::int64_t first_of_a, first_of_b;  ///< rows of A and B
    };
    double scale_ = 0;
    std::int64_t columns_ = 0, rank_ = 0;
    std::vector<Matrix> matrices_;
    std::vector<float> a_, b_;
};

/// Writes the folder of a PEFT adapter, with F32 tensors, from those sections of the checkpoint that have
/// adapters: those of the models of one folder are one adapter. `ends`: of the answers that were trained.
/// Collective. Error(usage) where PEFT has no such adapter; Error(cannot_create, bad_data, io_error).
void export_adapter(const comm::Communicator& world, const std::string& checkpoint,
                    const std::vector<ExportedSection>& sections, const AnswerEnds& ends,
                    const std::string& folder, Pulse& pulse, Interruption& interruption);

}  // namespace maestro::train
