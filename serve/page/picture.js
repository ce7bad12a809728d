// picture.js - an image as a data URL, small enough for a request and for a browser's storage.

const SIDE_MOST = 1280;
const BYTES_MOST = 300000;

function readAsUrl(blob) {
    return new Promise((resolve, reject) => {
        const reader = new FileReader();
        reader.onload = () => resolve(reader.result);
        reader.onerror = () => reject(reader.error);
        reader.readAsDataURL(blob);
    });
}

export async function shrink(file) {
    const bitmap = await createImageBitmap(file);
    const scale = Math.min(1, SIDE_MOST / Math.max(bitmap.width, bitmap.height));
    if (scale === 1 && file.size <= BYTES_MOST)
        return readAsUrl(file);
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    return canvas.toDataURL("image/jpeg", 0.85);
}
