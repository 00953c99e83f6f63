// A separate folder for each test, and the expectation that a file is refused.
#pragma once

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/error.hpp"
#include "data/sample_file.hpp"
#include "support/scratch_folder.hpp"
#include "unit/data/sample_writer.hpp"

namespace maestro::data {

using data_test::SampleArrays;
using data_test::SampleFileWriter;
using data_test::small_file;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class SampleFileTest : public testing::Test {
protected:
    void write(const SampleArrays& arrays) { writer_.write(path_, arrays); }

    /// Opening (and reading everything, once the text and once the pixels) throws `code` with the path and
    /// `fragments` in the message.
    template <class... Fragments>
    void expect_refused(ExitCode code, Fragments... fragments) {
        try {
            const SampleFile file(path_);
            Sample sample;
            for (const SampleFields fields : {SampleFields::pixels, SampleFields::text})
                for (std::int64_t i = 0; i < file.size(); ++i) file.read(i, sample, fields);
            ADD_FAILURE() << "accepted";
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), code) << error.what();
            EXPECT_THAT(error.what(), AllOf(HasSubstr(path_.string()), HasSubstr(fragments)...));
        }
    }
    template <class... Fragments>
    void expect_bad(Fragments... fragments) {
        expect_refused(ExitCode::bad_data, fragments...);
    }
    template <class... Fragments>
    void expect_bad_arrays(const SampleArrays& arrays, Fragments... fragments) {
        write(arrays);
        expect_bad(fragments...);
    }
    /// In a small file, changed by `change`.
    template <class Change, class... Fragments>
    void expect_bad_change(Change change, Fragments... fragments) {
        SampleArrays arrays = small_file();
        change(arrays);
        expect_bad_arrays(arrays, fragments...);
    }

    std::string bytes() const {
        std::ifstream stream(path_, std::ios::binary);
        return {std::istreambuf_iterator<char>(stream), {}};
    }
    void set_bytes(const std::string& bytes) const {
        std::ofstream(path_, std::ios::binary)
            .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    }

    testing_support::ScratchFolder scratch_;
    const std::filesystem::path& folder_ = scratch_.path();
    std::filesystem::path path_ = folder_ / "samples.h5";
    SampleFileWriter writer_;
};

}  // namespace maestro::data
