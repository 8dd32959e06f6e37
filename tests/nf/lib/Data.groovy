import groovy.json.JsonSlurper

/** Small data for the tests, and what tasks made of it. nf-test puts this folder on their class path. */
class Data {

    // nf-test runs in this folder.
    static final String PROJECT = System.getProperty('user.dir')

    /** Run a command; return what it prints, or fail with its errors. */
    static String run(List words, folder = PROJECT) {
        def process = words*.toString().execute((List) null, new File(folder))
        def (output, errors) = [new StringBuilder(), new StringBuilder()]
        process.waitForProcessOutput(output, errors)
        assert process.exitValue() == 0 : "${words.join(' ')}: ${errors}${output}"
        return output
    }

    /** Run a command of octane. */
    static void command(name, Object... words) {
        run(["${PROJECT}/bin/${name}.py"] + words.toList())
    }

    /** Make a phantom of two sections of 2 x 2 tiles in a folder. */
    static void phantom(folder, Object... flags) {
        def tiles = '--tiles 2 2 --tile_shape 24 64 64 --voxel_size 10 10 10 --edge_fraction 0'
        command('phantom', folder, *"--sections 2 --section_thickness 160 $tiles".tokenize(), *flags)
    }

    /** Write the tiles of a mosaic into a folder, as OME-TIFF, r0_c0.ome.tif and so on, without their places. */
    static void tiles(mosaic, folder) {
        def code = "PYTHONPATH=${PROJECT}/bin:${PROJECT}/tests/support"
        run(['env', code, 'python', "${PROJECT}/tests/nf/lib/tiles.py", mosaic, folder])
    }

    /** Shape, digest and statistics of the voxels of a level of a store, or of one index along its first axis. */
    static Map voxels(store, level = 0, index = '') {
        return new JsonSlurper().parseText(run(['python', "${PROJECT}/tests/nf/lib/voxels.py", store, level, index]))
    }

    /** Voxel sizes of the levels of a volume. */
    static List spacings(store) {
        def image = new JsonSlurper().parse(new File("${store}/zarr.json")).attributes.ome
        return image.multiscales[0].datasets.collect { level -> level.coordinateTransformations[0].scale }
    }

    /** The record of a task, among its files. */
    static Map record(files) {
        return new JsonSlurper().parse(new File([files].flatten().find { file -> file.endsWith('_metrics.json') }))
    }

    /** Replace the first chunk of a store by zeros, which PREFLIGHT does not see. */
    static void damage(store) {
        def chunk = new File("${store}/0/c/0/0/0")
        chunk.bytes = new byte[chunk.size()]
    }

    /** Names of tasks, without those of their workflows. */
    static List names(List tasks) {
        return tasks*.name*.replaceFirst(/^(\w+:)*(?=\w+ )/, '').sort()
    }
}
