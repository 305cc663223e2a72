// What TVM's runtime includes of TVM's `support` folder, which its wheel leaves out.
//
// The wheel ships the sources of the runtime, so cmake/from_source.cmake builds it for machines
// that there is no wheel for. These are the parts of the missing headers that the built sources
// use, with TVM's names: streams, numbers and containers in a stream, and buffers of an RPC
// session.
#ifndef TVM_STRETCH_PHONE_TVM_RUNTIME_SUPPORT_H_
#define TVM_STRETCH_PHONE_TVM_RUNTIME_SUPPORT_H_

#include <dlpack/dlpack.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/base64.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace tvm::support {

class Stream;

// How a value stands in a stream: the bytes of a number, or a count of 64 bits and the elements.
template <typename T, typename = void>
struct Serializer;

class Stream {
 public:
  virtual ~Stream() = default;
  virtual size_t Read(void* data, size_t size) = 0;
  virtual size_t Write(const void* data, size_t size) = 0;

  template <typename T>
  bool Read(T* value) {
    return Serializer<T>::Read(this, value);
  }
  template <typename T>
  void Write(const T& value) {
    Serializer<T>::Write(this, value);
  }
  template <typename T>
  bool ReadArray(T* values, size_t count) {
    return std::all_of(values, values + count, [this](T& value) { return Read(&value); });
  }
  template <typename T>
  void WriteArray(const T* values, size_t count) {
    std::for_each(values, values + count, [this](const T& value) { Write(value); });
  }
};

template <typename T>
constexpr bool kIsPlain = std::is_arithmetic_v<T> || std::is_enum_v<T> ||
                          std::is_same_v<T, DLDataType> || std::is_same_v<T, DLDevice>;

template <typename T>
struct Serializer<T, std::enable_if_t<kIsPlain<T>>> {
  static void Write(Stream* stream, const T& value) { stream->Write(&value, sizeof(T)); }
  static bool Read(Stream* stream, T* value) { return stream->Read(value, sizeof(T)) == sizeof(T); }
};

template <typename Container>
void WriteElements(Stream* stream, const Container& elements) {
  stream->Write(static_cast<uint64_t>(elements.size()));
  for (const auto& element : elements) stream->Write(element);
}

template <typename T, typename Container>
bool ReadElements(Stream* stream, Container* elements) {
  uint64_t count = 0;
  if (!stream->Read(&count)) return false;
  for (; count != 0; --count) {  // what was announced may never come
    T element{};
    if (!stream->Read(&element)) return false;
    elements->push_back(std::move(element));
  }
  return true;
}

template <>
struct Serializer<std::string> {
  static void Write(Stream* stream, const std::string& text) { WriteElements(stream, text); }
  static bool Read(Stream* stream, std::string* text) {
    text->clear();
    return ReadElements<char>(stream, text);
  }
};

template <>
struct Serializer<ffi::String> {
  static void Write(Stream* stream, const ffi::String& text) {
    stream->Write(static_cast<std::string>(text));
  }
  static bool Read(Stream* stream, ffi::String* text) {
    std::string read;
    const bool complete = stream->Read(&read);
    *text = std::move(read);
    return complete;
  }
};

template <typename T>
struct Serializer<std::vector<T>> {
  static void Write(Stream* stream, const std::vector<T>& values) { WriteElements(stream, values); }
  static bool Read(Stream* stream, std::vector<T>* values) {
    values->clear();
    return ReadElements<T>(stream, values);
  }
};

template <typename T>
struct Serializer<ffi::Array<T>> {
  static void Write(Stream* stream, const ffi::Array<T>& values) { WriteElements(stream, values); }
  static bool Read(Stream* stream, ffi::Array<T>* values) {
    *values = {};
    return ReadElements<T>(stream, values);
  }
};

class BytesInStream : public Stream {
 public:
  using Stream::Read;
  using Stream::Write;
  explicit BytesInStream(const std::string& bytes) { Begin(bytes.data(), bytes.size()); }
  size_t left() const { return size_; }
  size_t Read(void* data, size_t size) override {
    size = std::min(size, size_);
    std::memcpy(data, next_, size);
    Begin(next_ + size, size_ - size);
    return size;
  }
  size_t Write(const void*, size_t) override { TVM_FFI_THROW(RuntimeError) << "cannot write"; }

 protected:
  void Begin(const char* bytes, size_t size) {
    next_ = bytes;
    size_ = size;
  }

 private:
  const char* next_ = nullptr;
  size_t size_ = 0;
};

class BytesOutStream : public Stream {
 public:
  using Stream::Read;
  using Stream::Write;
  explicit BytesOutStream(std::string* bytes) : bytes_(*bytes) {}
  size_t Read(void*, size_t) override { TVM_FFI_THROW(RuntimeError) << "cannot read"; }
  size_t Write(const void* data, size_t size) override {
    bytes_.append(static_cast<const char*>(data), size);
    return size;
  }

 private:
  std::string& bytes_;
};

// Tensors as text, in TVM's JSON.
class Base64InStream : public BytesInStream {
 public:
  explicit Base64InStream(BytesInStream* text) : BytesInStream(std::string()), text_(*text) {}
  void InitPosition() {
    std::string encoded(text_.left(), '\0');
    text_.Read(encoded.data(), encoded.size());
    bytes_ = ffi::Base64Decode(encoded);
    Begin(bytes_.data(), bytes_.size());
  }

 private:
  BytesInStream& text_;
  ffi::Bytes bytes_;
};

class Base64OutStream : public BytesOutStream {
 public:
  explicit Base64OutStream(BytesOutStream* text) : BytesOutStream(&collected_), text_(*text) {}
  void Finish() {
    const ffi::String encoded = ffi::Base64Encode(ffi::Bytes(collected_));
    text_.Write(encoded.data(), encoded.size());
  }

 private:
  BytesOutStream& text_;
  std::string collected_;
};

// Bytes between a socket and the reader of messages. The buffer drops the bytes that were read when
// they are half of all.
class RingBuffer {
 public:
  size_t bytes_available() const { return bytes_.size() - begin_; }
  void Reserve(size_t count) { bytes_.reserve(begin_ + count); }

  void Read(void* data, size_t size) {
    TVM_FFI_ICHECK_GE(bytes_available(), size);
    std::memcpy(data, bytes_.data() + begin_, size);
    Drop(size);
  }
  template <typename Send>
  size_t ReadWithCallback(Send send, size_t most) {
    const size_t sent = send(bytes_.data() + begin_, std::min(most, bytes_available()));
    Drop(sent);
    return sent;
  }
  void Write(const void* data, size_t size) {
    const char* begin = static_cast<const char*>(data);
    bytes_.insert(bytes_.end(), begin, begin + size);
  }
  template <typename Receive>
  size_t WriteWithCallback(Receive receive, size_t most) {
    const size_t before = bytes_.size();
    bytes_.resize(before + most);
    const size_t received = receive(bytes_.data() + before, most);
    bytes_.resize(before + received);
    return received;
  }

 private:
  void Drop(size_t count) {
    begin_ += count;
    if (begin_ * 2 < bytes_.size()) return;
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<ptrdiff_t>(begin_));
    begin_ = 0;
    if (bytes_.empty() && bytes_.capacity() > kKept) bytes_.shrink_to_fit();
  }

  static constexpr size_t kKept = 1 << 20;
  std::vector<char> bytes_;
  size_t begin_ = 0;
};

// Memory for the arguments of one message.
class Arena {
 public:
  template <typename T>
  T* allocate_(size_t count) {
    blocks_.push_back(std::make_unique<std::max_align_t[]>(
        (sizeof(T) * count + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t)));
    return reinterpret_cast<T*>(blocks_.back().get());
  }
  void RecycleAll() { blocks_.clear(); }

 private:
  std::vector<std::unique_ptr<std::max_align_t[]>> blocks_;
};

inline bool StartsWith(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

inline bool IsNumber(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char letter) {
    return std::isdigit(letter) != 0;
  });
}

}  // namespace tvm::support

#endif  // TVM_STRETCH_PHONE_TVM_RUNTIME_SUPPORT_H_
