// node embed_onnx.mjs birds.onnx a.jpg b.jpg: unit embeddings by onnxruntime-node and sharp alone.
import { readFileSync } from "node:fs";
import ort from "onnxruntime-node";
import sharp from "sharp";

const [file, ...images] = process.argv.slice(2);
const { preprocessing: how, input } = JSON.parse(readFileSync(`${file}.json`, "utf-8"));
const even = (x) => (x % 1 === 0.5 ? 2 * Math.round(x / 2) : Math.round(x)); // halves to the even number

async function pixels(path) {
  const upright = await sharp(path).rotate().removeAlpha().toColourspace("srgb").raw().toBuffer({ resolveWithObject: true });
  let { width, height, channels } = upright.info;
  let image = sharp(upright.data, { raw: { width, height, channels } });
  if (how.short_side) {
    const short = Math.min(width, height);
    [width, height] = [width, height].map((side) => Math.floor((how.short_side * side) / short));
    const kernel = how.interpolation === "bicubic" ? "cubic" : "linear";
    image = sharp(await image.resize(width, height, { fit: "fill", kernel }).raw().toBuffer(), { raw: { width, height, channels } });
  }
  const [left, top] = [width, height].map((side) => even((side - how.crop) / 2));
  return image.extract({ left, top, width: how.crop, height: how.crop }).raw().toBuffer();
}

const session = await ort.InferenceSession.create(file);
const batch = Buffer.concat(await Promise.all(images.map(pixels)));
const shape = [images.length, ...input.shape.slice(1)];
const { embeddings } = await session.run({ pixels: new ort.Tensor("uint8", new Uint8Array(batch), shape) });
const [count, size] = embeddings.dims;
const rows = Array.from({ length: count }, (_, i) => Array.from(embeddings.data.slice(i * size, (i + 1) * size)));
console.log(JSON.stringify({ embeddings: rows }));
