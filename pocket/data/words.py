"""The words of the pocket world.  `LISTS` is what templates draw from; the rest is derived from it."""


def split(text: str) -> list[str]:
    return text.split()


def phrases(text: str) -> list[str]:
    """Phrases separated by bars or line ends."""
    return text.replace("\n", "|").split("|")


GIRLS = split("""
Mia Anna Lily Emma Clara Rosa Nora Ella Ruby Zoe Ivy Luna Ada Greta Hazel Iris Jade Kira Lena Maya Nina Olga
Paula Rita Sara Tess Uma Vera Wanda Yara Zelda Alice Bella Carla Daisy Edith Fiona Gina Hanna Ida Julia Karen
Laura Molly Nelly Olive Penny Quinn Rachel Sofia Tina Ursula Violet Willa Amber Betty Cora Dora Elsa Flora Grace
Helen Irene Jenny Kate Lucy Martha Naomi Opal Pearl Robin Stella Tara Una Vicky Wendy Anja Birgit Chloe Delia
Eva Freya Gloria Heidi Ines Joan Klara Linda Mona Nadia Odette Pia Rhea Selma Thea Vanessa Wilma Yvonne Priya
Amina Leila Fatima Keiko Mei Sana Zuri Imani Noor
""")
BOYS = split("""
Tom Sam Ben Max Leo Finn Jack Noah Oscar Paul Peter Ravi Simon Theo Victor Will Adam Boris Carl David Emil Felix
George Henry Isaac Jacob Kurt Liam Mark Nick Oliver Philip Quentin Robert Stefan Tim Ulrich Vincent Walter
Xavier Yusuf Zack Albert Bruno Conrad Daniel Edgar Frank Gustav Hugo Ivan Jonas Karl Louis Martin Nathan Otto
Pablo Ralph Sven Tobias Umar Vito Wesley Arthur Basil Cyril Dennis Ernest Fred Gilbert Harold Ian Jasper Kevin
Lars Milo Ned Owen Percy Rufus Silas Ted Viktor Wade Abel Barney Clem Dexter Elliot Floyd Gavin Hector Igor Joel
Kenji Omar Hassan Kofi Diego Mateo Arjun Chen Tariq Jamal
""")
ANIMALS = split("""
fox owl bear rabbit mouse hedgehog squirrel badger otter beaver deer wolf duck goose swan frog toad turtle snail
crab whale dolphin seal penguin cat dog pony horse donkey goat sheep lamb cow pig hen rooster sparrow robin crow
raven pigeon eagle hawk stork heron parrot peacock kitten puppy mole bat raccoon skunk moose elk lynx tiger lion
panda koala monkey elephant giraffe zebra camel llama kangaroo hippo rhino crocodile lizard gecko snake
butterfly bee beetle ant cricket spider ladybug firefly dragonfly moth caterpillar hamster gerbil ferret weasel
marmot chipmunk mule ox buffalo walrus pelican puffin flamingo ostrich magpie finch swallow woodpecker salmon
trout octopus starfish lobster dragon unicorn
""")
THINGS = split("""
lantern key map kite drum bell book basket ball boat box button candle clock coat coin comb compass crown cup
doll feather flute flag gem hammer hat horn jar kettle ladder lamp letter mirror necklace needle net paddle
pencil pillow pot puzzle quilt ring rope ruler sack saddle scarf shell shoe spoon stamp star stone sword teapot
telescope thimble ticket torch toy trumpet umbrella vase violin wagon wheel whistle window anchor apron arrow
axe backpack badge balloon banner barrel bead blanket bottle bow bowl bracelet brick broom brush bucket cage
camera cane card carpet cart chain chair chest cloak cork crayon crystal curtain cushion diary dish fan fiddle
fork frame glove goblet guitar handkerchief harp hook hourglass jug kazoo knot lens locket magnet marble mask
medal mitten mug notebook oar ornament paintbrush parcel pearl pendant piano pin pipe plate pocketwatch poem
postcard potion pouch ribbon robot rocket rug sail sandal scissors scroll seed shovel sketchbook skate sled
slipper soap sock spade sponge statue stool string suitcase tambourine tent thread tile towel tray tricycle
trophy tub vest wallet wand watch whip wig wreath xylophone yarn yoyo zipper
""")
THINGS.remove("scissors")
ADJECTIVES = split("""
red blue green golden silver tiny huge old new shiny dusty broken bright dark heavy light small large round
square wooden paper glass iron copper brass stone velvet woollen silk leather striped spotted painted polished
rusty ancient magic secret precious simple plain pretty ugly strange curious lovely little big long short thick
thin soft hard smooth rough warm cold wet dry clean dirty sharp blunt empty full loud quiet fancy humble crooked
straight bent folded hidden forgotten famous favourite beautiful wonderful splendid marvellous ordinary funny
odd rare royal sparkling glowing gleaming faded crumpled patched knitted carved woven borrowed lost found
special useful handmade colourful yellow purple orange pink brown black white grey crimson scarlet turquoise
violet ivory amber emerald delicate sturdy fragile solid hollow
""")
COLOURS = split("""
red blue green yellow purple orange pink brown black white grey golden silver crimson scarlet turquoise violet
ivory amber emerald teal navy maroon olive lilac coral indigo beige bronze copper
""")
PLACES = split("""
forest village meadow valley castle harbour island mountain river lake desert jungle farm garden town market
beach cave swamp hill bay cliff orchard vineyard windmill lighthouse mill palace tower cottage cabin bridge pond
stream waterfall canyon field park library school museum station workshop bakery kitchen attic cellar barn
stable greenhouse playground square street alley city port shipyard monastery temple ruin quarry mine moor heath
prairie savanna oasis glacier volcano lagoon reef marsh creek glade grove thicket hedge moat fortress inn tavern
theatre circus fairground zoo camp campsite crossroads hollow ridge plateau gorge spring well tunnel railway
observatory courtyard balcony rooftop
""")
TRAITS = split("""
brave kind clever curious shy proud lazy gentle patient stubborn cheerful honest careful careless noisy quiet
friendly lonely greedy generous helpful playful serious silly thoughtful wise young old busy calm cheeky daring
dreamy eager faithful fearless forgetful funny grumpy hasty hopeful humble jolly lively loyal merry messy modest
nervous nosy polite quick restless rude sleepy slow sly smart stern strong tidy timid tough trusting vain warm
wild witty worried bold bright cautious clumsy confident hungry inventive
""")
FEELINGS = split("""
happy sad angry afraid proud tired lonely excited worried surprised grateful ashamed nervous calm cheerful
jealous hopeful curious bored confused relieved glad upset scared thankful joyful gloomy embarrassed delighted
content sorry puzzled amazed disappointed peaceful miserable frightened
""")
FRUITS = split("""
apple pear plum cherry peach grape lemon orange banana melon fig berry strawberry raspberry blueberry apricot
mango kiwi coconut pineapple date lime olive quince currant
""")
FOODS = split("""
bread cheese soup cake pie honey jam butter rice pasta porridge pancakes waffles cookies biscuits toast stew
salad beans peas carrots potatoes onions tomatoes cabbage pumpkin mushrooms nuts walnuts almonds raisins apples
pears plums cherries peaches grapes lemons oranges bananas melons figs berries strawberries raspberries
blueberries apricots mangoes pudding yoghurt cream milk tea cocoa cider lemonade juice muffins dumplings noodles
sandwiches sausages eggs omelettes corn popcorn chestnuts gingerbread marmalade pretzels chocolate caramel
turnips radishes spinach lentils garlic pepper cinnamon
""")
JOBS = split("""
baker farmer miller sailor painter teacher doctor nurse tailor blacksmith carpenter fisherman shepherd gardener
librarian musician cook clockmaker potter weaver cobbler mason hunter beekeeper lighthouse-keeper postman driver
pilot captain king queen prince princess knight wizard witch inventor scientist student singer dancer juggler
clown merchant innkeeper barber butcher plumber engineer builder miner judge mayor soldier guard explorer
traveller poet writer printer jeweller glassblower ferryman woodcutter astronomer detective firefighter nanny
butler maid goatherd locksmith
""")
ADVERBS = split("""
slowly quickly quietly loudly softly gently bravely carefully happily sadly gladly eagerly patiently proudly
kindly politely calmly cheerfully suddenly nervously shyly silently steadily swiftly tenderly tightly warmly
wearily wisely boldly brightly busily cautiously clumsily curiously firmly gracefully gratefully greedily
hastily honestly hopefully hungrily joyfully lazily lightly merrily neatly playfully promptly sleepily smoothly
solemnly sternly stubbornly thoughtfully tiredly wildly
""")
CONTAINERS = split("""
box chest drawer cupboard locker safe cabinet crate trunk suitcase basket jar barrel bag case tin bucket wallet
vault shelf folder envelope desk wardrobe bin parcel bottle pouch sack tray
""")
ROOMS = split("""
kitchen attic cellar bedroom bathroom garage hall library office pantry workshop garden balcony basement nursery
study laundry closet lounge porch shed barn stable tower chapel gallery studio gym cafeteria lobby
""")
TOWNS = split("""
Paris London Berlin Rome Madrid Lisbon Vienna Prague Warsaw Oslo Stockholm Helsinki Copenhagen Dublin Athens
Cairo Tokyo Beijing Delhi Mumbai Sydney Toronto Boston Chicago Denver Dallas Seattle Lima Bogota Quito Santiago
Havana Nairobi Lagos Accra Tunis Moscow Kyiv Minsk Riga Vilnius Tallinn Zurich Geneva Basel Milan Naples Venice
Turin Hamburg Munich Cologne Dresden Leipzig Bremen Lyon Nice Porto Seville Valencia Bilbao Ghent Antwerp
Utrecht Bergen Malmo Aarhus Cork Leeds York Bath Oxford Dover Kyoto Osaka Seoul Manila Hanoi Jakarta Perth
""")
HOBBIES = split("""
painting singing reading dancing swimming cooking baking fishing climbing running drawing writing sewing
knitting gardening whistling juggling skating sailing hiking sledding exploring collecting building carving
counting jumping racing dreaming napping digging diving riding
""")
TREES = split("""
oak pine birch willow maple elm ash beech cedar fir chestnut poplar apple-tree cherry-tree linden hazel
walnut-tree cypress palm spruce
""")
FLOWERS = split("""
rose tulip daisy lily violet poppy sunflower daffodil lavender orchid bluebell marigold primrose iris buttercup
dandelion snowdrop clover heather thistle carnation crocus peony foxglove
""")
WEATHERS = split("""
sunny rainy windy cloudy foggy snowy stormy frosty chilly warm hot misty breezy icy clear grey mild freezing
damp drizzly
""")
SEASONS = ["spring", "summer", "autumn", "winter"]
DAYS = split("""Monday Tuesday Wednesday Thursday Friday Saturday Sunday""")
MONTHS = split("""
January February March April May June July August September October November December
""")
SOUNDS = split("""
scratching tapping knocking humming rustling creaking whistling rattling buzzing splashing squeaking dripping
howling rumbling clicking ticking thumping crackling hissing jingling
""")
CRAFTS = split("""
boat raft kite bridge cart treehouse birdhouse ladder sled windmill bench swing tower hut fence shed snowman
sandcastle nest dam puppet scarecrow clock flute basket lantern wagon rocking-chair bookshelf drum
""")
FEARS = phrases("""the dark|thunder|deep water|high places|big dogs|loud noises|strangers|spiders|the cold wind
old bridges|the forest at night|empty rooms|shadows|lightning|steep stairs|crowds|the cellar
storms|tall ladders|the sea|narrow caves|the school play|speaking aloud|the big wave""")
SKILLS = phrases("""to swim|to whistle|to bake bread|to ride a horse|to play the flute|to skate|to read
to juggle|to sew|to climb trees|to dance|to fly a kite|to paint|to sail|to tie knots|to sing
to fish|to row|to write poems|to cook soup|to count to a hundred|to knit|to dive
to play chess|to ski|to throw far|to carve wood|to milk a goat|to tell jokes|to spell""")
TRAPS = phrases("""a deep hole|a thorn bush|a muddy ditch|a fishing net|an old well|a hollow log|a heap of snow
a tall tree|a tangle of ropes|a narrow pipe|a broken fence|a dark cave|a slippery pit
a rusty cage|a flooded burrow|a crack in the ice|a pile of branches|a locked shed""")
TOOLS = phrases("""a long rope|a strong branch|a wooden plank|a ladder|a big shovel|a fishing rod|a blanket
a thick vine|a basket on a string|an old oar|a hammer|a pair of scissors|a bucket
a wheelbarrow""")
SPOTS = phrases("""under the bed|behind the door|in the tall grass|under a stone|near the river
beside the old tree|in the garden|under the bridge|behind the barn|on the roof
in the cupboard|between the rocks|in the hay|at the market|in a nest|behind the curtain
under a pile of leaves|next to the well|on the top shelf|in the mud|inside a boot
near the gate|at the edge of the wood|in the chimney|below the stairs|among the flowers
in the snow|on the windowsill|behind the mill|in the cart""")
VERBS_PAST = split("""
walked ran hurried wandered marched climbed crept jumped danced skipped strolled rushed trotted limped tiptoed
raced hopped rolled crawled sailed
""")
SAID = split("""
said whispered shouted cried laughed called murmured sighed giggled grumbled announced mumbled exclaimed
""")
SIZES = split("""small little tiny big large huge giant""")
PLANTS = split("""
bean carrot pumpkin turnip sunflower tomato melon cabbage rose radish strawberry potato corn pea cucumber onion
tulip lettuce pepper beet
""")
TIMES = phrases("""One morning|One evening|One day|One night|Early one day|Late one afternoon|On a quiet Sunday
Last week|Long ago|Once|At noon|After breakfast|Before sunrise|On market day|One fine day
On the first day of {season}|In the middle of {season}|On a {weather} day
One {weather} morning|One {weather} afternoon""")
SENTENCES = phrases("""The {adj} {thing} is in the {room}.|{name} likes {food}.
The {animal} sleeps near the {place}.|It was a {weather} day in {town}.
{name} and {name} went to the {place}.|My {adj} {thing} is {colour}.
The {job} sold a {thing} to {name}.|We eat {food} and {food} on {day}.
In {month} it is often {weather}.|{name} was {feeling} because of the {thing}.
A {trait} {animal} lives by the {place}.|The {flower} grows near the {tree}.
{name} enjoys {hobby} in {town}.|Every {day} the {job} visits the {place}.
There is a {adj} {thing} on the table.|The {animal} and the {animal} are friends.
{name} lost the {thing} near the {place}.|The {thing} was {adj} and {adj}.
{name} cooked {food} for the {job}.|The train from {town} to {town} is late.
A {colour} {thing} hangs on the wall.|The {trait} {job} walked {adverb} to the {place}.
{name} found {food} in the {container}.|Nobody knew why the {animal} was so {feeling}.
On {day} the {place} is closed.|The {place} looks {adj} in {season}.
The {job} from {town} plays the {thing}.|{name} wrote a letter to {name} in {month}.""")

CLOTHES = phrases("""coat|jacket|shirt|sweater|cape|gown|skirt|cap|hood|tunic|waistcoat|jumper|robe|cardigan
shawl|bonnet|beret|raincoat|bow tie|headscarf|dressing gown|straw hat|bathrobe|poncho""")
SMELLS = split("""
lavender smoke hay mint rain salt pine roses thyme rosemary basil dust leather tar peat moss seaweed vanilla nutmeg
ginger clover wax coffee soap cedarwood
""")
NATURE = split("""
river moonlight sunshine thunder frost dew snowflakes raindrops clouds rainbow breeze waves stars meadows mist leaves
acorns pebbles petals shadows icicles puddles hailstones sunbeams ferns reeds brambles mushrooms nettles ivy feathers
twigs roots branches echoes fireflies dragonflies
""")
DISTANCES = phrases("""three miles away|a day's walk from the sea|behind seven hills|where two rivers meet
at the foot of a cliff|between the railway and the canal|on the sunny side of the valley
near an abandoned quarry|above the clouds|below the old aqueduct|beside a frozen waterfall
at the end of a winding road|across the narrow strait|among tall reeds
opposite the clock tower|on the border of two kingdoms|beyond the last lamppost
under a crooked signpost""")
HABITS = phrases("""hummed old melodies|collected acorns and buttons|counted clouds before lunch
wrote letters to the moon|drank peppermint tea at sunset|spoke with the wind
kept a list of strange words|painted tiny pictures on pebbles|slept in a hammock
wound the kitchen clock backwards|fed the sparrows with crumbs
told riddles to the neighbours|watched the trains go by|built towers out of cards
practised somersaults on the lawn|dreamed of distant oceans|invented new recipes
studied the paths of comets|mended broken toys for children|grew herbs in a wheelbarrow
sang lullabies to the vegetables|planned great journeys|sorted shells by size
danced barefoot in puddles|tasted every kind of honey|measured the height of the grass
learned the names of stars|repaired umbrellas on rainy days|whittled spoons from driftwood
kept bees behind the chapel|stacked firewood in perfect rows|polished doorknobs for fun""")

_IRREGULAR = dict(
    pair.split(":")
    for pair in split("""
mouse:mice goose:geese wolf:wolves sheep:sheep deer:deer ox:oxen fish:fish knife:knives leaf:leaves man:men
woman:women child:children foot:feet tooth:teeth person:people moose:moose salmon:salmon trout:trout
shelf:shelves elf:elves life:lives
""")
)


def plural(word: str) -> str:
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word.endswith(("s", "x", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


NAMES = GIRLS + BOYS
COUNTABLES = [
    plural(thing) for thing in [*FRUITS, *THINGS] if thing not in ("piano", "soap", "yarn", "string")
]

LISTS: dict[str, list[str]] = {
    "name": NAMES,
    "animal": ANIMALS,
    "thing": THINGS,
    "things": COUNTABLES,
    "adj": ADJECTIVES,
    "colour": COLOURS,
    "place": PLACES,
    "trait": TRAITS,
    "feeling": FEELINGS,
    "fruit": FRUITS,
    "food": FOODS,
    "job": JOBS,
    "adverb": ADVERBS,
    "container": CONTAINERS,
    "room": ROOMS,
    "town": TOWNS,
    "hobby": HOBBIES,
    "tree": TREES,
    "flower": FLOWERS,
    "weather": WEATHERS,
    "season": SEASONS,
    "day": DAYS,
    "month": MONTHS,
    "sound": SOUNDS,
    "craft": CRAFTS,
    "fear": FEARS,
    "skill": SKILLS,
    "trap": TRAPS,
    "tool": TOOLS,
    "spot": SPOTS,
    "went": VERBS_PAST,
    "said": SAID,
    "size": SIZES,
    "plant": PLANTS,
    "clothes": CLOTHES,
    "smell": SMELLS,
    "nature": NATURE,
    "distance": DISTANCES,
    "habit": HABITS,
    # The same lists under the names that keep a second draw apart from a slot fixed for a whole story.
    "adj2": ADJECTIVES,
    "other": THINGS,
    "job2": JOBS,
    "smell2": SMELLS,
    "habit2": HABITS,
    "place2": PLACES,
    "feel_good": split("""
happy proud glad cheerful grateful joyful calm delighted content thankful
"""),
    "feel_bad": split("""
sad afraid lonely worried ashamed gloomy upset miserable tired sorry angry nervous
"""),
}

# Plain words for lists: one word each, lower case, no duplicates.
SINGLE = list(
    dict.fromkeys(
        word
        for group in (
            ANIMALS,
            THINGS,
            COLOURS,
            PLACES,
            TRAITS,
            FRUITS,
            FOODS,
            JOBS,
            ROOMS,
            FLOWERS,
            CONTAINERS,
        )
        for word in group
        if "-" not in word
    )
)
SHORT = [word for word in SINGLE if 3 <= len(word) <= 8]
