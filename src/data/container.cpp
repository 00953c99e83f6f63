#include "data/container.hpp"

#include <fmt/format.h>
#include <hdf5.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "base/error.hpp"
#include "storage/file.hpp"

namespace maestro::data {
namespace {

using Handle = storage::Hdf5Handle;

constexpr std::size_t kLongestText = 64;

std::pair<hid_t, std::int64_t> type_and_bytes(Element element) {
    switch (element) {
        case Element::i32:
            return {H5T_STD_I32LE, 4};
        case Element::i64:
            return {H5T_STD_I64LE, 8};
        case Element::u64:
            return {H5T_STD_U64LE, 8};
        case Element::f32:
            return {H5T_IEEE_F32LE, 4};
        case Element::f64:
            return {H5T_IEEE_F64LE, 8};
        case Element::u8:
            return {H5T_STD_U8LE, 1};
    }
    return {-1, 0};
}

std::string_view name_of(Element element) {
    constexpr std::array<std::string_view, 6> names{"int32",   "int64",   "uint64",
                                                    "float32", "float64", "uint8"};
    return names[static_cast<std::size_t>(element)];
}

std::string dataset_label(std::string_view name) {
    return fmt::format("dataset '{}'", name);
}
std::string attribute_label(std::string_view name) {
    return fmt::format("attribute '{}'", name);
}

/// Superblocks before version 2 carry no checksums: a flipped bit would go unnoticed, or worse.
void check_signature(const std::filesystem::path& path, int descriptor, Pulse& pulse) {
    constexpr std::array<unsigned char, 8> signature{0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
    std::array<unsigned char, 9> head{};
    const std::int64_t got = storage::read_at(descriptor, head.data(), head.size(), 0, pulse);
    if (got < 0) storage::io_failed(path, "cannot be read", errno);
    if (got < static_cast<std::int64_t>(head.size()) ||
        std::memcmp(head.data(), signature.data(), signature.size()) != 0)
        refuse(path, "offset 0",
               "not an HDF5 file; sample files are made by scripts/data (docs/file_formats.md)");
    if (head[8] != 2 && head[8] != 3)
        refuse(path, "offset 8",
               fmt::format("HDF5 superblock version {}, whose metadata has no checksums; write the file with "
                           "libver='latest', as scripts/data does",
                           head[8]));
}

}  // namespace

void refuse(const std::filesystem::path& path, std::string_view where, std::string_view what) {
    throw Error(ExitCode::bad_data, fmt::format("{}: {}: {}", path.string(), where, what));
}

void refuse_element(const std::filesystem::path& path, std::string_view dataset, std::int64_t element,
                    std::string_view what) {
    refuse(path, fmt::format("dataset '{}', element {}", dataset, element),
           fmt::format("{}; make the file again with scripts/data", what));
}

Container::Container(const std::filesystem::path& path, int descriptor, Pulse& pulse) : path_(path) {
    struct stat status {};
    if (::fstat(descriptor, &status) != 0) refuse(path, "file", std::strerror(errno));
    file_bytes_ = status.st_size;
    check_signature(path, descriptor, pulse);

    // HDF5 cannot close a file with a damaged object header, and at exit it would complain behind our own
    // message.
    H5dont_atexit();
    H5Eget_auto2(H5E_DEFAULT, &former_printer_, &former_client_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    state_.pulse = &pulse;
    storage::set_driver(access, state_);  // which takes no locks: they fail on some network file systems
    H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
    // The same file as the descriptor's, whatever the path names by now.
    file_ = Handle(H5Fopen(fmt::format("/proc/self/fd/{}", descriptor).c_str(), H5F_ACC_RDONLY, access),
                   H5Fclose);
    H5O_info_t root{};
    if (!file_ || H5Oget_info(file_, &root) < 0) {
        file_.close();
        H5Eset_auto2(H5E_DEFAULT, former_printer_, former_client_);
        fail("file", "HDF5 cannot open it: truncated, damaged, or still being written; make it again");
    }
}

Container::~Container() {
    file_.close();
    H5Eset_auto2(H5E_DEFAULT, former_printer_, former_client_);
}

void Container::fail(std::string_view where, std::string_view what) const {
    if (state_.failed != 0) storage::io_failed(path_, state_.what, state_.failed);
    refuse(path_, where, what);
}

void Container::expect_hard_link(std::string_view name, std::string_view where) const {
    const std::string text(name);
    if (H5Lexists(file_, text.c_str(), H5P_DEFAULT) <= 0)
        fail(where, "missing; make the file again with scripts/data");
    H5L_info_t link{};
    if (H5Lget_info(file_, text.c_str(), &link, H5P_DEFAULT) < 0 || link.type != H5L_TYPE_HARD)
        fail(where, "a soft or external link, which a sample file must not have; make the file again");
}

// HDF5 1.10 crashes on damaged heaps of links and attributes, which carry no checksums; small groups have
// none.
void Container::expect_group(std::string_view group, std::span<const std::string_view> members) const {
    const std::string text(group), where = fmt::format("group '{}'", group);
    if (group != "/") expect_hard_link(group, where);
    H5O_info_t object{};
    H5G_info_t info{};
    if (H5Oget_info_by_name(file_, text.c_str(), &object, H5P_DEFAULT) < 0 || object.type != H5O_TYPE_GROUP ||
        H5Gget_info_by_name(file_, text.c_str(), &info, H5P_DEFAULT) < 0)
        fail(where, "damaged, or not a group; make the file again");
    if (info.storage_type != H5G_STORAGE_TYPE_COMPACT || info.nlinks > members.size() ||
        object.meta_size.attr.heap_size != 0)
        fail(where,
             fmt::format("has more members or attributes than the {} of the format; make the file again",
                         members.size()));
    for (hsize_t i = 0; i < info.nlinks; ++i) {
        std::array<char, 256> name{};
        if (H5Lget_name_by_idx(file_, text.c_str(), H5_INDEX_NAME, H5_ITER_INC, i, name.data(), name.size(),
                               H5P_DEFAULT) < 0)
            fail(where, "damaged; make the file again");
        if (std::find(members.begin(), members.end(), std::string_view(name.data())) == members.end())
            fail(where, fmt::format("the format has no member '{}'; make the file again", name.data()));
    }
}

/// An attribute of the root group, checked to be a scalar.
Handle Container::open_attribute(std::string_view name) const {
    const std::string text(name);
    Handle attribute(H5Aexists(file_, text.c_str()) > 0 ? H5Aopen(file_, text.c_str(), H5P_DEFAULT) : -1,
                     H5Aclose);
    if (!attribute) fail(attribute_label(name), "missing; make the file again with scripts/data");
    const Handle space(H5Aget_space(attribute), H5Sclose);
    if (!space || H5Sget_simple_extent_type(space) != H5S_SCALAR)
        fail(attribute_label(name), "not a single value; make the file again with scripts/data");
    return attribute;
}

template <class T>
T Container::read_integer(std::string_view name, hid_t native) const {
    const Handle attribute = open_attribute(name);
    const Handle type(H5Aget_type(attribute), H5Tclose);
    T value = 0;
    if (!type || H5Tget_class(type) != H5T_INTEGER || H5Tget_size(type) > sizeof(T) ||
        H5Aread(attribute, native, &value) < 0)
        fail(attribute_label(name),
             "not an integer of at most 64 bits; make the file again with scripts/data");
    return value;
}

std::int64_t Container::integer(std::string_view attribute) const {
    return read_integer<std::int64_t>(attribute, H5T_NATIVE_INT64);
}

std::uint64_t Container::unsigned_integer(std::string_view attribute) const {
    return read_integer<std::uint64_t>(attribute, H5T_NATIVE_UINT64);
}

std::string Container::text(std::string_view name) const {
    const Handle attribute = open_attribute(name);
    const Handle type(H5Aget_type(attribute), H5Tclose);
    const bool fixed = type && H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0;
    if (!fixed || H5Tget_size(type) > kLongestText)
        fail(attribute_label(name),
             fmt::format("not a string of fixed length up to {}; make the file again with scripts/data",
                         kLongestText));
    std::string value(H5Tget_size(type), '\0');
    if (H5Aread(attribute, type, value.data()) < 0)
        fail(attribute_label(name), "damaged; make the file again");
    value.resize(std::strlen(value.c_str()));
    return value;
}

Extent Container::array(std::string_view name, Element element, int columns) const {
    const std::string text(name);
    const auto bad = [&](std::string_view what) {
        fail(dataset_label(name), fmt::format("{}; make the file again with scripts/data", what));
    };
    expect_hard_link(name, dataset_label(name));
    H5O_info_t object{};
    if (H5Oget_info_by_name(file_, text.c_str(), &object, H5P_DEFAULT) < 0) bad("damaged object header");
    if (object.type != H5O_TYPE_DATASET) bad("not a dataset");
    const Handle dataset(H5Dopen2(file_, text.c_str(), H5P_DEFAULT), H5Dclose);
    if (!dataset) bad("damaged object header");

    // The layout first: asking a virtual dataset for its shape may open other files.
    const Handle made(H5Dget_create_plist(dataset), H5Pclose);
    if (!made || H5Pget_layout(made) != H5D_CONTIGUOUS)
        bad("chunked, compact or virtual storage where it must be contiguous");
    if (H5Pget_external_count(made) != 0) bad("stored in other files, which a sample file must not be");

    const auto [expected, element_bytes] = type_and_bytes(element);
    const Handle type(H5Dget_type(dataset), H5Tclose);
    if (!type || H5Tequal(type, expected) <= 0)
        bad(fmt::format("its type is not little-endian {}", name_of(element)));

    const Handle space(H5Dget_space(dataset), H5Sclose);
    std::array<hsize_t, 2> shape{0, 0};
    const int rank = columns == 0 ? 1 : 2;
    if (!space || H5Sget_simple_extent_ndims(space) != rank ||
        H5Sget_simple_extent_dims(space, shape.data(), nullptr) < 0 ||
        (columns != 0 && shape[1] != static_cast<hsize_t>(columns)))
        bad(columns == 0 ? "its shape is not [n]" : fmt::format("its shape is not [n, {}]", columns));

    if (shape[0] == 0) return {};
    const auto row_bytes = static_cast<hsize_t>(element_bytes * (columns == 0 ? 1 : columns));
    const haddr_t offset = H5Dget_offset(dataset);
    const auto file_bytes = static_cast<hsize_t>(file_bytes_);
    if (offset == HADDR_UNDEF) bad("declared but never written");
    if (offset > file_bytes || shape[0] > (file_bytes - offset) / row_bytes)
        bad(fmt::format("declares {} rows of {} bytes at offset {}, beyond the file's {} bytes (truncated?)",
                        shape[0], row_bytes, offset, file_bytes));
    return {static_cast<std::int64_t>(offset), static_cast<std::int64_t>(shape[0])};
}

}  // namespace maestro::data
