#include "io/hdf5.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "base/error.hpp"

namespace maestro::io {

namespace {

constexpr hsize_t kChunkRows = 4096;

template <class T>
Handle type_of() {
    if constexpr (std::is_same_v<T, ShortText>) {
        Handle text(MAESTRO_HDF5(H5Tcopy(H5T_C_S1)), H5Tclose);
        MAESTRO_HDF5(H5Tset_size(text, sizeof(T)));
        MAESTRO_HDF5(H5Tset_strpad(text, H5T_STR_NULLPAD));
        return text;
    } else {
        const hid_t number = std::is_same_v<T, std::int32_t>   ? H5T_NATIVE_INT32
                             : std::is_same_v<T, std::int64_t> ? H5T_NATIVE_INT64
                                                               : H5T_NATIVE_DOUBLE;
        return {MAESTRO_HDF5(H5Tcopy(number)), H5Tclose};
    }
}

[[noreturn]] void bad(const std::string& name, const std::string& what) {
    throw Error(ExitCode::bad_data, fmt::format("{}: {}; the file is damaged or not maestro's", name, what));
}

/// Nothing is read that lies outside the file or that the file is too short for.
void check_storage(hid_t file, hid_t dataset, const std::string& name, std::uint64_t bytes) {
    const Handle creation(MAESTRO_HDF5(H5Dget_create_plist(dataset)), H5Pclose);
    if (H5Pget_layout(creation) == H5D_VIRTUAL || H5Pget_external_count(creation) != 0)
        bad(name, "stored outside the file");
    hsize_t size = 0;
    MAESTRO_HDF5(H5Fget_filesize(file, &size));
    if (H5Pget_layout(creation) == H5D_CONTIGUOUS && bytes > size)
        bad(name, fmt::format("claims {} bytes in a file of {}", bytes, size));
}

Handle open_dataset(hid_t parent, const std::string& name) {
    H5L_info_t info;
    if (H5Lexists(parent, name.c_str(), H5P_DEFAULT) <= 0 ||
        H5Lget_info(parent, name.c_str(), &info, H5P_DEFAULT) < 0)
        bad(name, "missing");
    if (info.type != H5L_TYPE_HARD) bad(name, "a link out of the file");
    const hid_t id = H5Dopen(parent, name.c_str(), H5P_DEFAULT);
    if (id < 0) bad(name, "not a dataset");
    return {id, H5Dclose};
}

}  // namespace

namespace detail {

void hdf5_failed(const char* expression, const char* file, int line) {
    std::string message;
    H5Ewalk(
        H5E_DEFAULT, H5E_WALK_UPWARD,
        [](unsigned n, const H5E_error_t* error, void* text) -> herr_t {
            if (n == 0 && error->desc) *static_cast<std::string*>(text) = error->desc;
            return 0;
        },
        &message);
    throw Error(ExitCode::io_error, fmt::format("{}:{}: {}: {}", file, line, expression,
                                                message.empty() ? "HDF5 gives no reason" : message));
}

}  // namespace detail

void quiet_hdf5() {
    H5Eset_auto(H5E_DEFAULT, nullptr, nullptr);
}

Handle make_group(hid_t parent, const std::string& name) {
    if (H5Lexists(parent, name.c_str(), H5P_DEFAULT) > 0)
        return {MAESTRO_HDF5(H5Gopen(parent, name.c_str(), H5P_DEFAULT)), H5Gclose};
    const Handle creation(MAESTRO_HDF5(H5Pcreate(H5P_GROUP_CREATE)), H5Pclose);
    MAESTRO_HDF5(H5Pset_obj_track_times(creation, false));
    return {MAESTRO_HDF5(H5Gcreate(parent, name.c_str(), H5P_DEFAULT, creation, H5P_DEFAULT)), H5Gclose};
}

namespace {

void remove_attribute(hid_t object, const std::string& name) {
    if (MAESTRO_HDF5(H5Aexists(object, name.c_str())) > 0) MAESTRO_HDF5(H5Adelete(object, name.c_str()));
}

}  // namespace

void write_attribute(hid_t object, const std::string& name, const std::string& value) {
    remove_attribute(object, name);
    const Handle type(MAESTRO_HDF5(H5Tcopy(H5T_C_S1)), H5Tclose);
    MAESTRO_HDF5(H5Tset_size(type, value.size() + 1));
    MAESTRO_HDF5(H5Tset_cset(type, H5T_CSET_UTF8));
    const Handle space(MAESTRO_HDF5(H5Screate(H5S_SCALAR)), H5Sclose);
    const Handle attribute(
        MAESTRO_HDF5(H5Acreate(object, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT)), H5Aclose);
    MAESTRO_HDF5(H5Awrite(attribute, type, value.c_str()));
}

void write_attribute(hid_t object, const std::string& name, std::int64_t value) {
    remove_attribute(object, name);
    const Handle space(MAESTRO_HDF5(H5Screate(H5S_SCALAR)), H5Sclose);
    const Handle attribute(
        MAESTRO_HDF5(H5Acreate(object, name.c_str(), H5T_NATIVE_INT64, space, H5P_DEFAULT, H5P_DEFAULT)),
        H5Aclose);
    MAESTRO_HDF5(H5Awrite(attribute, H5T_NATIVE_INT64, &value));
}

namespace {

/// One value, not an array of them: a reader has room for one.
void expect_one(hid_t attribute, const std::string& name) {
    const Handle space(MAESTRO_HDF5(H5Aget_space(attribute)), H5Sclose);
    if (H5Sget_simple_extent_npoints(space) != 1) bad(name, "the attribute is not one value");
}

}  // namespace

std::string read_text_attribute(hid_t object, const std::string& name) {
    constexpr std::size_t kLongest = 64 << 20;
    if (H5Aexists(object, name.c_str()) <= 0) bad(name, "the attribute is missing");
    const Handle attribute(MAESTRO_HDF5(H5Aopen(object, name.c_str(), H5P_DEFAULT)), H5Aclose);
    const Handle type(MAESTRO_HDF5(H5Aget_type(attribute)), H5Tclose);
    const std::size_t size = H5Tget_size(type);
    if (H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) > 0 || size > kLongest)
        bad(name, "the attribute is no plain text");
    expect_one(attribute, name);
    std::string text(size, '\0');
    MAESTRO_HDF5(H5Aread(attribute, type, text.data()));
    text.resize(text.find('\0') == std::string::npos ? text.size() : text.find('\0'));
    return text;
}

std::int64_t read_integer_attribute(hid_t object, const std::string& name) {
    if (H5Aexists(object, name.c_str()) <= 0) bad(name, "the attribute is missing");
    const Handle attribute(MAESTRO_HDF5(H5Aopen(object, name.c_str(), H5P_DEFAULT)), H5Aclose);
    const Handle type(MAESTRO_HDF5(H5Aget_type(attribute)), H5Tclose);
    if (H5Tget_class(type) != H5T_INTEGER) bad(name, "the attribute is no whole number");
    expect_one(attribute, name);
    std::int64_t value = 0;
    MAESTRO_HDF5(H5Aread(attribute, H5T_NATIVE_INT64, &value));
    return value;
}

std::uint64_t make_floats(hid_t file, const std::string& group, const std::string& name,
                          const std::vector<std::int64_t>& shape) {
    const Handle parent = make_group(file, group);
    const std::vector<hsize_t> extent(shape.begin(), shape.end());
    const Handle space(
        MAESTRO_HDF5(H5Screate_simple(static_cast<int>(extent.size()), extent.data(), nullptr)), H5Sclose);
    const Handle creation(MAESTRO_HDF5(H5Pcreate(H5P_DATASET_CREATE)), H5Pclose);
    MAESTRO_HDF5(H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY));
    MAESTRO_HDF5(H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER));
    MAESTRO_HDF5(H5Pset_obj_track_times(creation, false));
    const Handle dataset(MAESTRO_HDF5(H5Dcreate(parent, name.c_str(), H5T_IEEE_F32LE, space, H5P_DEFAULT,
                                                creation, H5P_DEFAULT)),
                         H5Dclose);
    const haddr_t place = H5Dget_offset(dataset);
    MAESTRO_CHECK(place != HADDR_UNDEF, "{}: without a place in its file", name);
    return place;
}

std::vector<float> read_floats(hid_t file, const std::string& path, const std::vector<std::int64_t>& shape,
                               const Shard& shard, Range held) {
    const Handle dataset = open_dataset(file, path);
    const Handle space(MAESTRO_HDF5(H5Dget_space(dataset)), H5Sclose);
    const Handle type(MAESTRO_HDF5(H5Dget_type(dataset)), H5Tclose);
    std::vector<hsize_t> found(static_cast<std::size_t>(std::max(0, H5Sget_simple_extent_ndims(space))));
    H5Sget_simple_extent_dims(space, found.data(), nullptr);
    const std::vector<hsize_t> wanted(shape.begin(), shape.end());
    if (found != wanted || H5Tget_class(type) != H5T_FLOAT || H5Tget_size(type) != 4)
        bad(path, fmt::format("holds shape [{}], the deck's model needs float32 [{}]", fmt::join(found, ", "),
                              fmt::join(shape, ", ")));
    check_storage(file, dataset, path, static_cast<hsize_t>(whole(shape).size()) * sizeof(float));
    if (held.size() <= 0) return {};
    // HDF5 selects whole rows of the columns; it reads ascending ones in the order in which they are held.
    const std::int64_t width = shard.columns.size();
    const Range rows{held.begin / width, (held.end + width - 1) / width};  // of those held
    std::int64_t at = 0;
    H5S_seloper_t how = H5S_SELECT_SET;
    for (const Range& r : shard.rows) {
        const std::int64_t first = std::max(rows.begin, at), last = std::min(rows.end, at + r.size());
        const hsize_t start[] = {static_cast<hsize_t>(r.begin + first - at),
                                 static_cast<hsize_t>(shard.columns.begin)};
        const hsize_t count[] = {static_cast<hsize_t>(last - first), static_cast<hsize_t>(width)};
        at += r.size();
        if (first >= last) continue;
        MAESTRO_HDF5(H5Sselect_hyperslab(space, how, start, nullptr, count, nullptr));
        how = H5S_SELECT_OR;
    }
    const auto size = static_cast<hsize_t>(rows.size() * width);
    const Handle memory(MAESTRO_HDF5(H5Screate_simple(1, &size, nullptr)), H5Sclose);
    std::vector<float> values(size);
    MAESTRO_HDF5(H5Dread(dataset, H5T_NATIVE_FLOAT, memory, space, H5P_DEFAULT, values.data()));
    if (static_cast<std::int64_t>(size) == held.size()) return values;
    const auto first = values.begin() + (held.begin - rows.begin * width);
    return {first, first + held.size()};
}

ShortText short_text(std::string_view text) {
    ShortText made{};
    MAESTRO_CHECK(text.size() <= made.size(), "'{}' is no short text", text);
    std::copy(text.begin(), text.end(), made.begin());
    return made;
}

template <class T>
void append_column(hid_t group, const std::string& name, std::span<const T> values) {
    const Handle type = type_of<T>();
    Handle dataset;
    hsize_t rows = 0;
    if (H5Lexists(group, name.c_str(), H5P_DEFAULT) > 0) {
        dataset = open_dataset(group, name);
        const Handle space(MAESTRO_HDF5(H5Dget_space(dataset)), H5Sclose);
        MAESTRO_HDF5(H5Sget_simple_extent_dims(space, &rows, nullptr));
    } else {
        const hsize_t none = 0, endless = H5S_UNLIMITED, chunk = kChunkRows;
        const Handle space(MAESTRO_HDF5(H5Screate_simple(1, &none, &endless)), H5Sclose);
        const Handle creation(MAESTRO_HDF5(H5Pcreate(H5P_DATASET_CREATE)), H5Pclose);
        MAESTRO_HDF5(H5Pset_chunk(creation, 1, &chunk));
        dataset = Handle(
            MAESTRO_HDF5(H5Dcreate(group, name.c_str(), type, space, H5P_DEFAULT, creation, H5P_DEFAULT)),
            H5Dclose);
    }
    if (values.empty()) return;
    const hsize_t count = values.size(), whole = rows + count;
    MAESTRO_HDF5(H5Dset_extent(dataset, &whole));
    const Handle space(MAESTRO_HDF5(H5Dget_space(dataset)), H5Sclose),
        memory(MAESTRO_HDF5(H5Screate_simple(1, &count, nullptr)), H5Sclose);
    MAESTRO_HDF5(H5Sselect_hyperslab(space, H5S_SELECT_SET, &rows, nullptr, &count, nullptr));
    MAESTRO_HDF5(H5Dwrite(dataset, type, memory, space, H5P_DEFAULT, values.data()));
}

template <class T>
std::vector<T> read_column(hid_t group, const std::string& name) {
    return read_column<T>(group, name, 0, rows_of_column(group, name));
}

template <class T>
std::vector<T> read_column(hid_t group, const std::string& name, std::int64_t first, std::int64_t rows) {
    const Handle dataset = open_dataset(group, name);
    const hsize_t begin = static_cast<hsize_t>(first), count = static_cast<hsize_t>(rows);
    const auto all = static_cast<hsize_t>(rows_of_column(group, name));
    if (begin + count > all) bad(name, fmt::format("{} rows where there were {}", all, begin + count));
    if (H5Dget_storage_size(dataset) < all * sizeof(T) / 64) bad(name, "claims more rows than it stores");
    std::vector<T> values(count);
    if (values.empty()) return values;
    const Handle space(MAESTRO_HDF5(H5Dget_space(dataset)), H5Sclose),
        memory(MAESTRO_HDF5(H5Screate_simple(1, &count, nullptr)), H5Sclose);
    MAESTRO_HDF5(H5Sselect_hyperslab(space, H5S_SELECT_SET, &begin, nullptr, &count, nullptr));
    const Handle type = type_of<T>();
    MAESTRO_HDF5(H5Dread(dataset, type, memory, space, H5P_DEFAULT, values.data()));
    return values;
}

std::int64_t rows_of_column(hid_t group, const std::string& name) {
    const Handle dataset = open_dataset(group, name);
    const Handle space(MAESTRO_HDF5(H5Dget_space(dataset)), H5Sclose);
    hsize_t rows = 0;
    if (H5Sget_simple_extent_ndims(space) != 1) bad(name, "not a column");
    MAESTRO_HDF5(H5Sget_simple_extent_dims(space, &rows, nullptr));
    return static_cast<std::int64_t>(rows);
}

void cut_column(hid_t group, const std::string& name, std::int64_t rows) {
    if (const std::int64_t found = rows_of_column(group, name); found < rows)
        bad(name, fmt::format("{} rows where there were {}", found, rows));
    const Handle dataset = open_dataset(group, name);
    const auto size = static_cast<hsize_t>(rows);
    MAESTRO_HDF5(H5Dset_extent(dataset, &size));
}

template void append_column(hid_t, const std::string&, std::span<const std::int32_t>);
template void append_column(hid_t, const std::string&, std::span<const std::int64_t>);
template void append_column(hid_t, const std::string&, std::span<const double>);
template void append_column(hid_t, const std::string&, std::span<const ShortText>);
template std::vector<std::int32_t> read_column(hid_t, const std::string&);
template std::vector<std::int64_t> read_column(hid_t, const std::string&);
template std::vector<double> read_column(hid_t, const std::string&);
template std::vector<ShortText> read_column(hid_t, const std::string&);
template std::vector<std::int64_t> read_column(hid_t, const std::string&, std::int64_t, std::int64_t);
template std::vector<double> read_column(hid_t, const std::string&, std::int64_t, std::int64_t);

}  // namespace maestro::io
