#include "safetensors/safetensors_writer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "base/check.hpp"
#include "base/checksum.hpp"
#include "base/error.hpp"
#include "safetensors/convert.hpp"
#include "safetensors/message.hpp"
#include "safetensors/safetensors_folder.hpp"

namespace maestro::safetensors {

namespace fs = std::filesystem;

namespace {

/// What is converted and written at once.
constexpr std::uint64_t kBlock = 1 << 20;
constexpr const char* kPartial = ".partial";

[[noreturn]] void cannot_create(const fs::path& path, const std::string& what) {
    throw Error(ExitCode::cannot_create, fmt::format("{}: {}", path.string(), what));
}

std::uint64_t hash_of(const void* bytes, std::uint64_t count) {
    Checksum checksum;
    checksum.add(bytes, count);
    return checksum.value();
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const fs::path& folder, const OutputLayout& layout, Pulse& pulse)
    : folder_(folder), layout_(layout), pulse_(pulse), outputs_(layout.files.size()) {}

SafetensorsWriter::~SafetensorsWriter() {
    if (!made_folder_ && made_files_ == 0) return;
    std::error_code ignored;
    for (std::size_t i = 0; i < made_files_; ++i)
        fs::remove(folder_ / layout_.files[i].name, ignored);  // publish() did not come to its end
    discard();
}

fs::path SafetensorsWriter::partial(std::size_t file) const {
    return folder_ / (layout_.files[file].name + kPartial);
}

void SafetensorsWriter::check_wanted(std::size_t file) const {
    if (pulse_.cancelled())
        throw Error(ExitCode::io_error,
                    fmt::format("{}: given up, because another rank failed", partial(file).string()));
}

/// For writing only: a network file system that has read a page may later send back all of it, and what
/// another rank wrote there is lost.
SafetensorsWriter::Output& SafetensorsWriter::output(std::size_t file) {
    Output& output = outputs_.at(file);
    if (!output.file) {
        pulse_.doing(fmt::format("writing {}", partial(file).string()));
        output.file = storage::Descriptor(partial(file), O_WRONLY);
        if (!output.file) storage::io_failed(partial(file), "cannot be opened", errno);
    }
    return output;
}

/// Refuses a folder with weights, and removes what an export left that did not end.
void SafetensorsWriter::clear_folder() {
    std::error_code error;
    {
        const std::lock_guard lock(making_);
        made_folder_ = fs::create_directories(folder_, error);
    }
    if (error) cannot_create(folder_, fmt::format("cannot be created: {}", error.message()));
    for (fs::directory_iterator entry(folder_, error), end; !error && entry != end; entry.increment(error)) {
        const std::string name = entry->path().filename();
        if (!name.starts_with("model") && !name.starts_with("adapter_model")) continue;
        if (name.ends_with(".safetensors") || name == kIndexFile)
            cannot_create(entry->path(),
                          "the folder holds weights already; name another folder, or remove them");
        if (name.ends_with(std::string(".safetensors") + kPartial)) fs::remove(entry->path(), error);
        if (error) break;
    }
    if (error) storage::io_failed(folder_, "cannot be read and cleared", error.value());
}

void SafetensorsWriter::prepare() {
    clear_folder();
    for (std::size_t i = 0; i < layout_.files.size(); ++i) {
        const OutputLayout::File& file = layout_.files[i];
        {
            const std::lock_guard lock(making_);
            if (discarded_) cannot_create(partial(i), "the work was given up");
            outputs_[i].file = storage::Descriptor(partial(i), O_WRONLY | O_CREAT | O_EXCL);
        }
        if (!outputs_[i].file) cannot_create(partial(i), std::strerror(errno));
        made_files_ = i + 1;
        pulse_.doing(fmt::format("writing {}", partial(i).string()));
        storage::reserve_space(partial(i), outputs_[i].file, file.bytes, pulse_);
        write_bytes(i, kHeader, file.header.data(), file.header.size(), 0);
    }
}

void SafetensorsWriter::write(std::size_t tensor, std::span<const Extent> extents, const float* values) {
    const TensorSpec& spec = layout_.tensors.at(tensor);
    const std::int64_t elements = spec.elements(),
                       at_once = static_cast<std::int64_t>(kBlock / bytes_of(spec.type));
    block_.resize(kBlock);
    std::int64_t first = 0;  // of the elements in gathered_
    const auto flush = [&] {
        write_block(tensor, first, gathered_.data(), static_cast<std::int64_t>(gathered_.size()));
        gathered_.clear();
    };
    for (const Extent& extent : extents) {
        MAESTRO_CHECK(extent.logical >= 0 && extent.count >= 0 && extent.count <= elements - extent.logical,
                      "{}: elements {} to {} of {}", spec.name, extent.logical, extent.logical + extent.count,
                      elements);
        if (extent.stride == 1) {
            flush();
            for (std::int64_t done = 0; done < extent.count; done += at_once)
                write_block(tensor, extent.logical + done, values + extent.local + done,
                            std::min(at_once, extent.count - done));
            continue;
        }
        for (std::int64_t i = 0; i < extent.count; ++i) {
            const auto gathered = static_cast<std::int64_t>(gathered_.size());
            if (gathered == at_once || extent.logical + i != first + gathered) flush();
            if (gathered_.empty()) first = extent.logical + i;
            gathered_.push_back(values[extent.local + i * extent.stride]);
        }
    }
    flush();
}

/// Converts and writes elements of a tensor, at most kBlock bytes.
void SafetensorsWriter::write_block(std::size_t tensor, std::int64_t first, const float* values,
                                    std::int64_t count) {
    if (count == 0) return;
    const TensorSpec& spec = layout_.tensors[tensor];
    const OutputLayout::Place place = layout_.places[tensor];
    const std::uint64_t size = bytes_of(spec.type);
    if (const std::int64_t wrong = from_f32(spec.type, values, count, block_.data()); wrong >= 0)
        refuse(partial(place.file), spec.name,
               fmt::format("element {} of {} is {}, and no finite number in {}; export in another type, or "
                           "the weights of a step before training diverged",
                           first + wrong, text_of(spec.shape), values[wrong], name_of(spec.type)));
    write_bytes(place.file, tensor, block_.data(), static_cast<std::uint64_t>(count) * size,
                place.offset + static_cast<std::uint64_t>(first) * size);
}

void SafetensorsWriter::write_bytes(std::size_t file, std::size_t tensor, const void* source,
                                    std::uint64_t bytes, std::uint64_t offset) {
    check_wanted(file);
    Output& to = output(file);
    if (!storage::write_at(to.file.get(), source, bytes, offset, pulse_))
        storage::io_failed(partial(file), "cannot be written", errno);
    written_.push_back({file, tensor, offset, bytes, hash_of(source, bytes)});
    to.unsynced += bytes;
    if (to.unsynced >= storage::kSyncEvery) sync(file);
}

void SafetensorsWriter::verify() {
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
        const auto is_here = [&](const Written& written) { return written.file == i; };
        if (std::none_of(written_.begin(), written_.end(), is_here)) continue;
        pulse_.doing(fmt::format("reading {} to compare it", partial(i).string()));
        const storage::Descriptor file = storage::open_to_compare(partial(i));
        for (const Written& written : written_)
            if (is_here(written)) compare(written, file);
    }
    written_.clear();
}

void SafetensorsWriter::compare(const Written& written, const storage::Descriptor& file) {
    check_wanted(written.file);
    block_.resize(std::max<std::size_t>(block_.size(), written.bytes));
    const std::int64_t got =
        storage::read_at(file.get(), block_.data(), written.bytes, written.offset, pulse_);
    if (got < 0) storage::io_failed(partial(written.file), "cannot be read back", errno);
    if (static_cast<std::uint64_t>(got) < written.bytes ||
        hash_of(block_.data(), written.bytes) != written.hash)
        throw Error(ExitCode::io_error,
                    fmt::format("{}: {}: what was read back from byte {} on is not what was written; check "
                                "the disk, then run again",
                                partial(written.file).string(),
                                written.tensor == kHeader
                                    ? "its header"
                                    : "tensor " + in_quotes(layout_.tensors[written.tensor].name),
                                written.offset));
}

void SafetensorsWriter::sync(std::size_t file) {
    check_wanted(file);
    Output& to = outputs_[file];
    if (!to.file || to.unsynced == 0) return;
    if (::fsync(to.file.get()) != 0) storage::io_failed(partial(file), "cannot be synced to the disk", errno);
    to.unsynced = 0;
    pulse_.beat();
}

void SafetensorsWriter::sync() {
    for (std::size_t i = 0; i < outputs_.size(); ++i) sync(i);
}

void SafetensorsWriter::discard() noexcept {
    const std::lock_guard lock(making_);
    discarded_ = true;
    std::error_code ignored;
    for (std::size_t i = 0; i < layout_.files.size(); ++i) fs::remove(partial(i), ignored);
    if (made_folder_) fs::remove(folder_, ignored);  // only if it is empty
}

void SafetensorsWriter::publish() {
    MAESTRO_CHECK(written_.empty(), "{}: not read back yet", folder_.string());
    for (std::size_t i = 0; i < layout_.files.size(); ++i) {
        const std::uint64_t bytes = storage::size_of(partial(i), output(i).file);
        MAESTRO_CHECK(bytes == layout_.files[i].bytes, "{}: {} bytes instead of {}", partial(i).string(),
                      bytes, layout_.files[i].bytes);
    }
    sync();
    std::error_code error;
    for (std::size_t i = 0; i < layout_.files.size() && !error; ++i) {
        outputs_[i] = {};
        fs::rename(partial(i), folder_ / layout_.files[i].name, error);
        if (error) storage::io_failed(partial(i), "cannot be renamed", error.value());
    }
    if (!layout_.index.empty()) storage::write_text_durably(folder_ / kIndexFile, layout_.index);
    storage::sync(folder_);
    made_folder_ = false;
    made_files_ = 0;
}

}  // namespace maestro::safetensors
