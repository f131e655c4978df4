// embed_onnx birds.onnx pixels.rgb SIZE: the unit embedding of SIZE × SIZE pixels, three bytes each, by onnxruntime.
// g++ -std=c++17 embed_onnx.cpp -I onnxruntime/include -L onnxruntime/lib -lonnxruntime -o embed_onnx
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <vector>
#include <onnxruntime_cxx_api.h>

int main(int, char** argv) {
  const int64_t size = std::atoll(argv[3]);
  std::ifstream file(argv[2], std::ios::binary);
  std::vector<uint8_t> pixels((std::istreambuf_iterator<char>(file)), {});
  Ort::Env env;
  Ort::Session session(env, argv[1], Ort::SessionOptions{});
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  const int64_t shape[] = {1, size, size, 3};
  auto input = Ort::Value::CreateTensor<uint8_t>(memory, pixels.data(), pixels.size(), shape, 4);
  const char *in[] = {"pixels"}, *out[] = {"embeddings"};
  auto found = session.Run(Ort::RunOptions{}, in, &input, 1, out, 1);
  const float* embedding = found[0].GetTensorData<float>();
  const auto count = found[0].GetTensorTypeAndShapeInfo().GetElementCount();
  for (size_t i = 0; i < count; ++i) std::printf("%.9g\n", embedding[i]);
}
