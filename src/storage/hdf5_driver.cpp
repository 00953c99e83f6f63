#include "storage/hdf5_driver.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>

#include "base/check.hpp"
#include "storage/file.hpp"

namespace maestro::storage {

namespace {

constexpr haddr_t kLargest = haddr_t{1} << 62;

/// HDF5 knows the first member only.
struct OpenFile {
    H5FD_t base;
    DriverState* state;
    Descriptor descriptor;  ///< invalid for a new file whose writes are held
    dev_t device;
    ino_t inode;
    haddr_t end_of_addresses, end_of_file;
    std::uint64_t unsynced;
};

OpenFile& self(H5FD_t* file) {
    return *reinterpret_cast<OpenFile*>(file);
}

void remember(DriverState& state, const char* what) {
    if (state.failed != 0) return;
    state.failed = errno != 0 ? errno : EIO;
    state.what = what;
}

H5FD_t* open(const char* name, unsigned flags, hid_t access, haddr_t) {
    auto* const* info = static_cast<DriverState* const*>(H5Pget_driver_info(access));
    if (!info) return nullptr;
    DriverState& state = **info;
    state.pages.clear();
    state.failed = 0;
    auto file = std::unique_ptr<OpenFile>(new (std::nothrow) OpenFile{});
    if (!file) return nullptr;
    file->state = &state;
    const bool made = (flags & H5F_ACC_TRUNC) != 0;
    if (!made || !state.hold) {
        const bool writes = (flags & H5F_ACC_RDWR) != 0 && !state.hold;
        file->descriptor =
            Descriptor(name, (writes ? O_RDWR : O_RDONLY) | ((flags & H5F_ACC_CREAT) ? O_CREAT : 0) |
                                 (made ? O_TRUNC : 0));
        struct stat found = {};
        if (!file->descriptor || ::fstat(file->descriptor.get(), &found) != 0) {
            remember(state, "cannot be opened");
            return nullptr;
        }
        file->device = found.st_dev;
        file->inode = found.st_ino;
        file->end_of_file = static_cast<haddr_t>(found.st_size);
    }
    return &file.release()->base;
}

herr_t close(H5FD_t* file) {
    self(file).state->end = self(file).end_of_file;
    delete &self(file);
    return 0;
}

int compare(const H5FD_t* a, const H5FD_t* b) {
    const auto& x = *reinterpret_cast<const OpenFile*>(a);
    const auto& y = *reinterpret_cast<const OpenFile*>(b);
    if (!x.descriptor || !y.descriptor) return a < b ? -1 : a > b;
    if (x.device != y.device) return x.device < y.device ? -1 : 1;
    return x.inode < y.inode ? -1 : x.inode > y.inode;
}

herr_t query(const H5FD_t*, unsigned long* flags) {
    *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
             H5FD_FEAT_AGGREGATE_SMALLDATA | H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
    return 0;
}

haddr_t get_end_of_addresses(const H5FD_t* file, H5FD_mem_t) {
    return reinterpret_cast<const OpenFile*>(file)->end_of_addresses;
}
herr_t set_end_of_addresses(H5FD_t* file, H5FD_mem_t, haddr_t address) {
    self(file).end_of_addresses = address;
    return 0;
}
haddr_t get_end_of_file(const H5FD_t* file, H5FD_mem_t) {
    return reinterpret_cast<const OpenFile*>(file)->end_of_file;
}

/// What lies past the end of the file is 0, as HDF5 expects.
bool read_file(OpenFile& file, void* target, std::uint64_t bytes, std::uint64_t offset) {
    std::int64_t got = 0;
    if (file.state->failed != 0) return false;  // it has been tried again already
    if (file.descriptor) {
        got = read_at(file.descriptor.get(), target, bytes, offset, *file.state->pulse);
        if (got < 0) {
            remember(*file.state, "cannot be read");
            return false;
        }
    }
    const auto read = static_cast<std::uint64_t>(got);
    std::memset(static_cast<char*>(target) + read, 0, bytes - read);
    return true;
}

herr_t read(H5FD_t* base, H5FD_mem_t, hid_t, haddr_t address, std::size_t bytes, void* target) {
    OpenFile& file = self(base);
    if (!read_file(file, target, bytes, address)) return -1;
    const auto& pages = file.state->pages;
    for (auto page = pages.lower_bound(address / kPage);
         page != pages.end() && page->first * kPage < address + bytes; ++page) {
        const haddr_t from = std::max<haddr_t>(address, page->first * kPage),
                      to = std::min<haddr_t>(address + bytes, (page->first + 1) * kPage);
        std::memcpy(static_cast<char*>(target) + (from - address),
                    page->second.data() + (from - page->first * kPage), to - from);
    }
    return 0;
}

bool hold(OpenFile& file, haddr_t address, std::size_t bytes, const void* source) {
    for (haddr_t at = address; at < address + bytes;) {
        const haddr_t number = at / kPage, start = number * kPage;
        auto page = file.state->pages.find(number);
        if (page == file.state->pages.end()) {
            std::array<std::byte, kPage> old;
            if (!read_file(file, old.data(), kPage, start)) return false;
            page = file.state->pages.emplace(number, old).first;
        }
        const haddr_t to = std::min<haddr_t>(address + bytes, start + kPage);
        std::memcpy(page->second.data() + (at - start), static_cast<const char*>(source) + (at - address),
                    to - at);
        at = to;
    }
    return true;
}

herr_t write(H5FD_t* base, H5FD_mem_t, hid_t, haddr_t address, std::size_t bytes, const void* source) {
    OpenFile& file = self(base);
    DriverState& state = *file.state;
    if (state.failed == 0) {
        errno = 0;
        const bool done = state.hold ? hold(file, address, bytes, source)
                                     : write_at(file.descriptor.get(), source, bytes, address, *state.pulse);
        if (!done) remember(state, "cannot be written");
        file.unsynced += state.hold ? 0 : bytes;
        if (file.unsynced >= kSyncEvery) {
            if (::fdatasync(file.descriptor.get()) != 0) remember(state, "cannot be synced to the disk");
            file.unsynced = 0;
            state.pulse->beat();
        }
    }
    file.end_of_file = std::max<haddr_t>(file.end_of_file, address + bytes);
    return 0;
}

herr_t truncate(H5FD_t* base, hid_t, hbool_t) {
    OpenFile& file = self(base);
    if (file.end_of_addresses == file.end_of_file) return 0;
    if (!file.state->hold && file.state->failed == 0 &&
        ::ftruncate(file.descriptor.get(), static_cast<off_t>(file.end_of_addresses)) != 0)
        remember(*file.state, "cannot be written");
    file.end_of_file = file.end_of_addresses;
    return 0;
}

hid_t driver() {
    static const hid_t id = [] {
        H5FD_class_t functions = {};
        functions.name = "maestro";
        functions.maxaddr = kLargest;
        functions.fc_degree = H5F_CLOSE_WEAK;
        functions.fapl_size = sizeof(DriverState*);
        functions.open = open;
        functions.close = close;
        functions.cmp = compare;
        functions.query = query;
        functions.get_eoa = get_end_of_addresses;
        functions.set_eoa = set_end_of_addresses;
        functions.get_eof = get_end_of_file;
        functions.read = read;
        functions.write = write;
        functions.truncate = truncate;
        constexpr H5FD_mem_t kMap[] = H5FD_FLMAP_DICHOTOMY;
        std::copy(std::begin(kMap), std::end(kMap), std::begin(functions.fl_map));
        return H5FDregister(&functions);
    }();
    return id;
}

}  // namespace

void set_driver(hid_t access, DriverState& state) {
    DriverState* info = &state;
    MAESTRO_CHECK(driver() >= 0 && H5Pset_driver(access, driver(), static_cast<const void*>(&info)) >= 0,
                  "HDF5 does not take the file driver");
}

}  // namespace maestro::storage
