// A switch. On Nextflow 26.04 every value of the command line is text, and any text would be true, 'no' and
// 'false' as well. Where there is no such parameter, as in another workflow, it is off.
def switched(name) {
    def text = (params.containsKey(name) ? params[name] : false).toString().trim().toLowerCase()
    if (!(text in ['true', 'false'])) { error("--${name} is '${params[name]}': write true or false.") }
    return text == 'true'
}

// Where a task's file is published in the folder of its subject; null: it is not.
def published(meta, step, name) {
    def last = !switched('skip_pyramid') ? 'pyramid' : !switched('skip_n4') ? 'n4' : meta.kind == 'volume' ? 'resample' : 'stack'
    def isResult = name.endsWith('.ome.zarr') ? step == last || name.endsWith('_bias.ome.zarr') : name.endsWith('_displacements.csv') || step == 'report'
    def place = placeOf(name)
    return isResult || place != name ? place : null
}

// The place of a published file in that folder.
def placeOf(name) {
    def folder = name.endsWith('_metrics.json') ? 'metrics/' : name.endsWith('_flat_field.tif') ? 'flat_fields/' : name.endsWith('.nsys-rep') ? 'profiles/' : ''
    return folder + name
}
