// What a client has to know, without ever saying it: HMAC-SHA256 of a key that is used once.
#ifndef TVM_STRETCH_SERVER_SECRET_H_
#define TVM_STRETCH_SERVER_SECRET_H_

#include <string>

namespace tvm_stretch::server {

// In hexadecimal digits.
std::string Sha256(const std::string& text);
std::string Proof(const std::string& secret, const std::string& text);

// Whether two texts are the same, in a time that does not tell where they differ.
bool SameText(const std::string& one, const std::string& other);

// So many random hexadecimal digits; "" if the system has none.
std::string RandomDigits(size_t count);

}  // namespace tvm_stretch::server

#endif  // TVM_STRETCH_SERVER_SECRET_H_
