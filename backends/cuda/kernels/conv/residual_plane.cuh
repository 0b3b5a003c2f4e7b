// The shape of an inverted residual, as kernels of two or three of its layers take it.

struct Plane {
    int channels, filters;  // of the image and the result
    int height, width, out_height, out_width, pad_h, pad_w;
    int row_x, row_y;   // elements from one pixel to the next
    int down, across;   // tiles of an image
    int chunks;
};

struct Source {  // the image of a first layer
    int height, width, pad_h, pad_w;
};
