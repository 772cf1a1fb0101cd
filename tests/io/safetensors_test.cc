#include "io/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "io/safetensors_bytes.h"
#include "mxfa/error.h"

namespace mxfa::io {
namespace {

namespace fs = std::filesystem;

class SafetensorsFile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              ("mxfa_io_" + std::to_string(::getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  fs::path folder_;
};

std::string error_of(const std::vector<std::byte>& image) {
  try {
    SafetensorsReader::from_bytes(image, "f.safetensors");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string error_of(std::string_view header, std::string_view data = "") {
  return error_of(file_image(header, data));
}

TEST_F(SafetensorsFile, EveryDtypeRoundTrips) {
  constexpr DType kAll[] = {DType::kF64,  DType::kF32,  DType::kF16, DType::kBF16, DType::kE4M3,
                            DType::kE5M2, DType::kE8M0, DType::kI64, DType::kI32,  DType::kU8};
  std::mt19937 rng(7);
  std::vector<HostTensor> tensors;
  std::vector<NamedTensor> named;
  for (const DType dtype : kAll) {
    HostTensor tensor = HostTensor::zeros(dtype, std::vector<std::int64_t>{3, 1, 5});
    for (std::byte& byte : tensor.bytes) byte = static_cast<std::byte>(rng());
    tensors.push_back(std::move(tensor));
  }
  tensors.push_back(HostTensor::zeros(DType::kF32, std::vector<std::int64_t>{}));
  tensors.push_back(HostTensor::zeros(DType::kF16, std::vector<std::int64_t>{4, 0, 2}));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    named.push_back({"t\xc3\xa4" + std::to_string(i), tensors[i].view()});
  }
  write_safetensors(path("a.safetensors"), named, {{"kind", "test \"quoted\""}});
  const SafetensorsReader reader = SafetensorsReader::open(path("a.safetensors"));
  ASSERT_EQ(reader.tensors().size(), tensors.size());
  EXPECT_EQ(reader.metadata(), (Metadata{{"kind", "test \"quoted\""}}));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const HostTensor got = reader.read(named[i].name);
    EXPECT_EQ(got.dtype, tensors[i].dtype) << named[i].name;
    EXPECT_EQ(got.shape, tensors[i].shape) << named[i].name;
    EXPECT_EQ(got.bytes, tensors[i].bytes) << named[i].name;
  }
}

TEST_F(SafetensorsFile, WriterLaysOutByElementSizeThenNameAndAligns) {
  HostTensor byte = HostTensor::zeros(DType::kU8, std::vector<std::int64_t>{3});
  HostTensor wide = HostTensor::zeros(DType::kF64, std::vector<std::int64_t>{1});
  HostTensor half = HostTensor::zeros(DType::kBF16, std::vector<std::int64_t>{2});
  const std::vector<NamedTensor> named = {
      {"a", byte.view()}, {"z", wide.view()}, {"m", half.view()}, {"b", half.view()}};
  write_safetensors(path("a"), named, {});
  const SafetensorsReader reader = SafetensorsReader::open(path("a"));
  std::string order;
  for (const TensorEntry& entry : reader.tensors()) {
    order += entry.name;
    EXPECT_EQ(entry.offset % dtype_size(*entry.dtype), 0U) << entry.name;
  }
  EXPECT_EQ(order, "zbma");
  EXPECT_EQ((fs::file_size(path("a")) - 8 - 4 - 4 - 3) % 8, 0U) << "the header is not padded";
  EXPECT_EQ(files(), 1U);
}

TEST_F(SafetensorsFile, WriterFailureLeavesTheOldFileAndNothingElse) {
  HostTensor tensor = HostTensor::zeros(DType::kU8, std::vector<std::int64_t>{3});
  write_safetensors(path("a"), std::vector<NamedTensor>{{"old", tensor.view()}}, {});
  const auto bad_sets = std::vector<std::vector<NamedTensor>>{
      {{"x", tensor.view()}, {"x", tensor.view()}},
      {{"", tensor.view()}},
      {{"__metadata__", tensor.view()}},
      {{"broken \xff utf-8", tensor.view()}},
  };
  for (const auto& bad : bad_sets) EXPECT_THROW(write_safetensors(path("a"), bad, {}), Error);
  TensorView strided = make_tensor(tensor.bytes.data(), DType::kU8, {1, 2});
  strided.strides = {3, 2};
  EXPECT_THROW(write_safetensors(path("a"), std::vector<NamedTensor>{{"x", strided}}, {}), Error);
  EXPECT_EQ(files(), 1U);
  EXPECT_NE(SafetensorsReader::open(path("a")).find("old"), nullptr);
  const std::vector<NamedTensor> good = {{"x", tensor.view()}};
  EXPECT_THROW(write_safetensors(path("no/such/folder"), good, {}), Error);
  EXPECT_THROW(write_safetensors(folder_.string(), good, {}), Error);
}

/// A pipe of the test's own: were it replaced by a file, no device of the machine would be.
TEST_F(SafetensorsFile, WriterReplacesNothingButARegularFile) {
  HostTensor tensor = HostTensor::zeros(DType::kU8, std::vector<std::int64_t>{3});
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_THROW(write_safetensors(path("pipe"), std::vector<NamedTensor>{{"x", tensor.view()}}, {}),
               Error);
  EXPECT_TRUE(fs::is_fifo(path("pipe")));
  EXPECT_EQ(files(), 1U);
}

TEST_F(SafetensorsFile, WriterFollowsSymbolicLinks) {
  HostTensor tensor = HostTensor::zeros(DType::kU8, std::vector<std::int64_t>{3});
  const std::vector<NamedTensor> named = {{"x", tensor.view()}};
  write_safetensors(path("real"), named, {});
  fs::create_symlink(path("real"), path("link"));
  const std::vector<NamedTensor> other = {{"y", tensor.view()}};
  write_safetensors(path("link"), other, {});
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_NE(SafetensorsReader::open(path("real")).find("y"), nullptr);
}

TEST_F(SafetensorsFile, UnreadablePathsAreRefused) {
  EXPECT_THROW(SafetensorsReader::open(path("missing")), Error);
  EXPECT_THROW(SafetensorsReader::open(folder_.string()), Error);
  EXPECT_THROW(SafetensorsReader::open("/dev/zero"), Error);
}

TEST_F(SafetensorsFile, AFileThatShrinksIsAnError) {
  HostTensor tensor = HostTensor::zeros(DType::kU8, std::vector<std::int64_t>{1000});
  write_safetensors(path("a"), std::vector<NamedTensor>{{"x", tensor.view()}}, {});
  const SafetensorsReader reader = SafetensorsReader::open(path("a"));
  fs::resize_file(path("a"), 500);
  EXPECT_THROW(reader.read("x"), Error);
}

struct BadHeader {
  const char* name;
  std::string header;
  std::string data;
  std::string want;  ///< part of the message
};

std::vector<BadHeader> bad_headers() {
  const std::string four = "\"shape\":[4],\"data_offsets\":[0,4]}";
  const auto tensor = [](const std::string& body) { return "{\"x\":" + body + "}"; };
  return {
      {"NotAnObject", "[1]", "", "does not begin with '{'"},
      {"Empty", "", "", "does not begin with '{'"},
      {"ByteOrderMark", "\xef\xbb\xbf{}", "", "does not begin with '{'"},
      {"CutOff", "{\"x\":", "", "not valid JSON"},
      {"TrailingText", "{} x", "", "not valid JSON"},
      {"BrokenUtf8", "{\"\xff\":1}", "", "not valid JSON"},
      {"Comment", "{/**/}", "", "not valid JSON"},
      {"SameName", "{\"x\":{},\"x\":{}}", "", "tensor 'x': the name occurs twice"},
      {"SameField", tensor("{\"dtype\":\"U8\",\"dtype\":\"U8\"," + four), "abcd",
       "tensor 'x': the key 'dtype' occurs twice"},
      {"SameMetadata", "{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", "", "'k' occurs twice"},
      {"MetadataNumber", "{\"__metadata__\":{\"k\":1}}", "", "'k' is a number, expected a string"},
      {"MetadataList", "{\"__metadata__\":[]}", "", "'__metadata__': described by an array"},
      {"NoDtype", tensor("{" + four), "abcd", "tensor 'x': the field dtype is missing"},
      {"NoShape", tensor("{\"dtype\":\"U8\",\"data_offsets\":[0,4]}"), "abcd", "shape is missing"},
      {"NoOffsets", tensor("{\"dtype\":\"U8\",\"shape\":[4]}"), "abcd", "data_offsets is missing"},
      {"Unknown", tensor("{\"dtype\":\"U8\",\"order\":\"F\"," + four), "abcd",
       "unknown field 'order'"},
      {"UnknownDtype", tensor("{\"dtype\":\"F7\"," + four), "abcd", "unknown dtype 'F7'"},
      {"DtypeNumber", tensor("{\"dtype\":1," + four), "abcd", "dtype is a number"},
      {"NegativeExtent", tensor("{\"dtype\":\"U8\",\"shape\":[-4],\"data_offsets\":[0,4]}"), "abcd",
       "shape holds the negative number -4"},
      {"FloatExtent", tensor("{\"dtype\":\"U8\",\"shape\":[4.0],\"data_offsets\":[0,4]}"), "abcd",
       "shape holds 4.0, which is no 64-bit integer"},
      {"NestedShape", tensor("{\"dtype\":\"U8\",\"shape\":[[4]],\"data_offsets\":[0,4]}"), "abcd",
       "shape holds an array"},
      {"HugeExtent",
       tensor("{\"dtype\":\"U8\",\"shape\":[18446744073709551615],\"data_offsets\":[0,4]}"), "abcd",
       "does not fit 63 bits"},
      {"Above64Bits",
       tensor("{\"dtype\":\"U8\",\"shape\":[18446744073709551616],\"data_offsets\":[0,4]}"), "abcd",
       "no 64-bit integer"},
      {"Overflow",
       tensor("{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}"), "",
       "the size of shape [4294967296, 4294967296] overflows"},
      {"OverflowBehindZero",
       tensor("{\"dtype\":\"U8\",\"shape\":[0,4294967296,4294967296],\"data_offsets\":[0,0]}"), "",
       "overflows"},
      {"PastTheEnd", tensor("{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,5]}"), "abcd",
       "data_offsets [0, 5] out of range: the file holds 4 bytes"},
      {"Backwards", tensor("{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,0]}"), "abcd",
       "data_offsets [4, 0] out of range"},
      {"OneOffset", tensor("{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4]}"), "abcd",
       "data_offsets has 1 numbers"},
      {"ThreeOffsets", tensor("{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4,4]}"), "abcd",
       "data_offsets has more than 2 numbers"},
      {"WrongSize", tensor("{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[0,4]}"), "abcd",
       "span 4 bytes, but F16 [4] needs 8"},
      {"HoleBefore", tensor("{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[1,4]}"), "abcd",
       "tensor 'x': starts at 1, which leaves a hole after byte 0"},
      {"HoleAfter", tensor("{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}"), "abcd",
       "the last 1 bytes belong to no tensor"},
      {"Overlap",
       "{\"x\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
       "\"y\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
       "abcd", "tensor 'y': starts at 2 and overlaps tensor 'x', which ends at 3"},
      {"ControlCharacter", "{\"a\\u001b[31m\":1}", "", "tensor 'a\\x1b[31m'"},
  };
}

class SafetensorsBadHeader : public ::testing::TestWithParam<BadHeader> {};

TEST_P(SafetensorsBadHeader, IsRefusedByName) {
  const std::string error = error_of(GetParam().header, GetParam().data);
  EXPECT_NE(error.find(GetParam().want), std::string::npos) << error;
  EXPECT_EQ(error.rfind("f.safetensors: ", 0), 0U) << "the file is not named: " << error;
}

INSTANTIATE_TEST_SUITE_P(Headers, SafetensorsBadHeader, ::testing::ValuesIn(bad_headers()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Safetensors, HeaderLengthIsChecked) {
  std::vector<std::byte> image = file_image("{}", "");
  EXPECT_EQ(error_of(image), "no error");
  EXPECT_NE(error_of(std::vector<std::byte>(7)).find("too few"), std::string::npos);
  image[0] = std::byte{3};
  EXPECT_NE(error_of(image).find("truncated: a header of 3 bytes in a file of 10"),
            std::string::npos);
  image[7] = std::byte{0xFF};
  EXPECT_NE(error_of(image).find("exceeds the limit of 100000000"), std::string::npos);
}

TEST(Safetensors, ManyDimensionsAndForeignDtypesAreListedButNotRead) {
  const auto image = file_image(
      "{\"mask\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[0,2]},"
      "\"deep\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,2],\"data_offsets\":[2,4]},"
      "\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[4,5]}}",
      "abcde");
  const SafetensorsReader reader = SafetensorsReader::from_bytes(image, "f");
  EXPECT_EQ(reader.read("x").bytes, (std::vector<std::byte>{std::byte{'e'}}));
  const auto message = [&](const char* name) -> std::string {
    try {
      reader.read(name);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(message("mask"), "f: tensor 'mask': dtype BOOL is not supported");
  EXPECT_EQ(message("deep"), "f: tensor 'deep': 6 dimensions, at most 5 are supported");
  EXPECT_EQ(message("q"), "f: no tensor 'q'; the file has: mask, deep, x");
}

TEST(Safetensors, OddAddressesAndHeaderPaddingAreRead) {
  const auto image = file_image(
      "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
      "\"f\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[1,5]}}   \n",
      std::string("\x01\x00\x00\x80\x3f", 5));
  std::vector<std::byte> shifted(image.size() + 1);
  std::copy(image.begin(), image.end(), shifted.begin() + 1);
  const auto reader = SafetensorsReader::from_bytes(std::span(shifted).subspan(1), "f");
  EXPECT_EQ(to_f32(reader.read("f")), std::vector<float>{1.0F});
}

/// A quick stand-in for the fuzzer: flips, cuts, duplicates and splices of valid files.
TEST(Safetensors, MutatedFilesAreReadOrRefused) {
  const auto image = file_image(
      "{\"__metadata__\":{\"k\":\"v\"},\"a\":{\"dtype\":\"F16\",\"shape\":[2,1],\"data_offsets\":"
      "[0,4]},\"b\":{\"dtype\":\"F8_E4M3\",\"shape\":[3],\"data_offsets\":[4,7]}}",
      "abcdefg");
  std::mt19937 rng(1);
  int accepted = 0;
  for (int round = 0; round < 40000; ++round) {
    std::vector<std::byte> bytes = image;
    for (int edits = 1 + static_cast<int>(rng() % 3); edits > 0 && !bytes.empty(); --edits) {
      const std::size_t at = rng() % bytes.size();
      const std::size_t length = std::min<std::size_t>(rng() % 12, bytes.size() - at);
      const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(at);
      switch (rng() % 4) {
        case 0:
          bytes[at] = static_cast<std::byte>(rng());
          break;
        case 1:
          bytes.erase(begin, begin + static_cast<std::ptrdiff_t>(length));
          break;
        case 2: {
          const std::vector<std::byte> part(begin, begin + static_cast<std::ptrdiff_t>(length));
          const auto to = static_cast<std::ptrdiff_t>(rng() % (bytes.size() + 1));
          bytes.insert(bytes.begin() + to, part.begin(), part.end());
          break;
        }
        default:
          bytes[at] = static_cast<std::byte>("0123456789-.[]{},:\""[rng() % 19]);
      }
      if (bytes.size() >= 8) bytes[0] = static_cast<std::byte>(bytes.size() - 8 - 7);
    }
    try {
      const auto reader = SafetensorsReader::from_bytes(bytes, "f");
      for (const TensorEntry& entry : reader.tensors()) {
        if (entry.dtype && entry.shape.size() <= kMaxRank) {
          ASSERT_EQ(reader.read(entry).bytes.size(), entry.size_bytes);
        }
      }
      ++accepted;
    } catch (const Error&) {
    }
  }
  // Edits of data, names and metadata leave a valid file, so some must be read.
  EXPECT_GT(accepted, 400);
  EXPECT_LT(accepted, 39000);
}

}  // namespace
}  // namespace mxfa::io
